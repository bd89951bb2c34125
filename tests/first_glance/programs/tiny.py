squares = [number * number for number in range(200_000)]  # HERE
print(len(squares))
