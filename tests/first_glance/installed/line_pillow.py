from PIL import Image


def main():
    small = Image.new("RGB", (2000, 2000), "red")
    large = small.resize((8000, 6000))  # HERE
    print(large.size)


if __name__ == "__main__":
    main()
