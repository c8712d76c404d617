"""Random Llama models that answer differently when a byte of their KV changes, made without a hub.

usage: tiny_model.py FOLDER [--layers N] [--hidden N] [--dtype float32|bfloat16|float16] [--seed N]

The weights are drawn wide (standard deviation 0.2 where training starts at 0.02): with narrow ones the
logits are nearly flat and a wrong KV block would hardly show. The tokenizer is a byte-level BPE of 512
tokens. transformers and vLLM both load the folder.
"""
import argparse
import dataclasses
import pathlib
import sys

VOCABULARY = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The model's numbers; head_dim must be one that vLLM's CPU attention takes (32, 64, 128, ...)."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    dtype: str = "float32"
    seed: int = 0

    def kv_bytes(self, tokens: int) -> int:
        element = 4 if self.dtype == "float32" else 2
        return tokens * self.layers * 2 * self.kv_heads * self.head_dim * element


TINY = Shape()
# The shape of the time-to-first-token figures.
MEDIUM = Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64)


def write_tokenizer(folder: pathlib.Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>", "<unk>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["prefix blocks of one prompt are held for the next"] * 20, trainer=trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                            unk_token="<unk>").save_pretrained(folder)


def write_model(folder: pathlib.Path, shape: Shape = TINY) -> None:
    """A model folder as save_pretrained leaves it; the same shape and seed give the same bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(shape.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=shape.hidden, intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, max_position_embeddings=8192,
        bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, initializer_range=0.2)
    LlamaForCausalLM(config).to(getattr(torch, shape.dtype)).save_pretrained(folder)
    write_tokenizer(folder)


def write_adapter(folder: pathlib.Path, shape: Shape = TINY, rank: int = 8, seed: int = 1) -> None:
    """A random LoRA adapter over the key and value projections, as peft would have saved it."""
    import json

    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    kv_width = shape.kv_heads * shape.head_dim
    tensors = {}
    for layer in range(shape.layers):
        for name in ("k_proj", "v_proj"):
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{where}.lora_A.weight"] = torch.randn(rank, shape.hidden, generator=generator) * 0.3
            tensors[f"{where}.lora_B.weight"] = torch.randn(kv_width, rank, generator=generator) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0,
        "bias": "none", "target_modules": ["k_proj", "v_proj"], "base_model_name_or_path": "tiny",
    }), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=TINY.layers)
    parser.add_argument("--hidden", type=int, default=TINY.hidden)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default=TINY.dtype)
    parser.add_argument("--seed", type=int, default=TINY.seed)
    args = parser.parse_args()
    write_model(args.folder, dataclasses.replace(
        TINY, layers=args.layers, hidden=args.hidden, dtype=args.dtype, seed=args.seed))
    print(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
