from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def main():
    texts = [f"the quick brown fox {number} jumps over {number * 7} dogs" for number in range(20_000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts[:500], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    encoded = tokenizer.encode_batch(texts * 2)  # HERE
    print(len(encoded))


if __name__ == "__main__":
    main()
