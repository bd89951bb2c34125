import networkx as nx


def main():
    graph = nx.Graph()
    for node in range(150_000):
        graph.add_edge(node, node * 7919 % 150_000)  # HERE
    print(graph.number_of_edges())


if __name__ == "__main__":
    main()
