import pyarrow as pa
import pyarrow.compute as pc


def main():
    pa.set_memory_pool(pa.system_memory_pool())
    values = pa.array(range(1_000_000))
    text = pc.cast(values, pa.string())
    order = [pc.binary_repeat(text, 12) for _ in range(2)]  # HERE
    print(len(order))


if __name__ == "__main__":
    main()
