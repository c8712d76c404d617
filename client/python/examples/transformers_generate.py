#!/usr/bin/env python3
"""A transformers model that begins its prompts with KV from kvtier.

    kvtierd --data-dir /tmp/kvtier --ram-bytes 1GiB &
    python3 transformers_generate.py --server unix:/tmp/kvtier/kvtier.sock
    python3 transformers_generate.py --server unix:/tmp/kvtier/kvtier.sock --model Qwen/Qwen3-0.6B

Asks two questions about one document. The first computes the document, the second has its KV from
kvtier, as has every other process with the same model: run it twice. Without --model it is a small
random Llama, which needs no download and answers nonsense.
"""
import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import kvtier
from kvtier.engines.transformers import CallReport, KvtierCache

DOCUMENT = "Keys and values of a token depend on the tokens before it and on nothing that follows. " * 40
QUESTIONS = ("What do keys depend on?", "What follows from that?")


def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)  # the same weights, so the same identity, in each process
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512,
                                        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                        head_dim=64, max_position_embeddings=8192))


def tell(call: CallReport) -> None:
    print(f"prompt {call.prompt_tokens} tokens: {call.loaded_tokens} from kvtier, "
          f"{call.prefill_positions} computed; {call.stored_blocks} blocks stored; "
          f"{call.load_seconds * 1e3:.1f} ms to load, "
          f"{call.store_seconds * 1e3:.1f} ms to store; failure: {call.failure}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Two questions about one document, its KV kept in kvtier.")
    parser.add_argument("--server", default="unix:/tmp/kvtier/kvtier.sock", help="unix:PATH or HOST:PORT")
    parser.add_argument("--model", help="name or folder of a causal LM; default: a small random Llama")
    parser.add_argument("--tenant", default="", help="nothing is shared between tenants")
    args = parser.parse_args()

    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = AutoModelForCausalLM.from_pretrained(args.model)
        encode, decode = (lambda text: tokenizer(text, return_tensors="pt").input_ids), tokenizer.decode
    else:
        model = random_llama()
        encode, decode = (lambda text: torch.tensor([list(text.encode())])), lambda ids: bytes(ids.tolist())

    namespace = kvtier.Namespace(tenant=args.tenant)
    with KvtierCache(model.eval(), args.server, namespace=namespace) as cache:
        for question in QUESTIONS:
            input_ids = encode(DOCUMENT + question)
            output = cache.generate(input_ids, max_new_tokens=16, do_sample=False)
            print(question, decode(output[0, input_ids.shape[1]:]))
            tell(cache.last_call)


if __name__ == "__main__":
    main()
