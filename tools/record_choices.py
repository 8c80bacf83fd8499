#!/usr/bin/env python3
"""Records what Hugging Face transformers says to the multiple-choice questions that lm_eval asks our server.

    venv-hf/bin/python tools/record_choices.py FOLDER    # the environment and the float32 folder of record_reference.py

Writes tests/data/clients/science_choice_hf.json: for each answer of each question the sum of the logprobs of its tokens
behind the question, and whether every one of them was the greedy choice: what lm_eval computes from a server's echo."""
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/clients"


def main():
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    lines, right = [], 0
    for line in (DATA / "science_choice.jsonl").read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        context = f"Question: {document['question']}\nAnswer:"
        sums, greedy = [], []
        for choice in document["choices"]:
            tokens, length = ids(f"{context} {choice}"), len(ids(context))
            with torch.no_grad():
                logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), dim=-1)
            wanted = torch.tensor(tokens[length:])
            rows = logprobs[length - 1:-1]
            sums.append(float(f"{rows[torch.arange(len(wanted)), wanted].sum().item():.7g}"))
            greedy.append(bool((rows.argmax(dim=-1) == wanted).all()))
        right += sums.index(max(sums)) == document["answer"]
        lines.append(json.dumps({"loglikelihoods": sums, "greedy": greedy}))
    what = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, SmolLM2-135M-Instruct.Q4_1.gguf"
    path = DATA / "science_choice_hf.json"
    path.write_text('{"what": ' + json.dumps(what) + f', "accuracy": {right / len(lines)},\n "documents": [\n  '
                    + ",\n  ".join(lines) + "\n ]}\n", encoding="utf-8")
    print(f"{path}: {right} of {len(lines)} right")


if __name__ == "__main__":
    main()
