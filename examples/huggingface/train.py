"""Fine-tune a model in Hugging Face's format with its Trainer, as a run that stops and resumes.

    fsdpkit submit examples/huggingface/train.py --nodes 2 --gpus 4 -- --model DIRECTORY
    python examples/huggingface/train.py --model DIRECTORY        # one process, no cluster

DIRECTORY holds config.json, weights and a tokenizer, of a causal model or an encoder-decoder. The
text is Python's own documentation; put yours in the place of `texts`. The one line that is
fsdpkit's is `attach`.
"""

import argparse
from pydoc_data.topics import topics

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)

from fsdpkit.script.huggingface import attach

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--model", required=True, help="directory in Hugging Face's format")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=8, help="rows a rank")
parser.add_argument("--length", type=int, default=64, help="tokens a row")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--fsdp", action="store_true", help="shard the model by FSDP2")
options = parser.parse_args()

texts = list(topics.values())


class Rows(torch.utils.data.Dataset):
    """Windows of `length` tokens; an encoder-decoder reads the first half, writes the second."""

    def __init__(self, tokens: torch.Tensor, length: int, halves: bool) -> None:
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)
        self.halves = halves

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        if not self.halves:
            return {"input_ids": row, "labels": row}
        middle = len(row) // 2
        return {"input_ids": row[:middle], "labels": row[middle:]}


def main() -> None:
    config = AutoConfig.from_pretrained(options.model)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    set_seed(42)  # dropout and the order of rows
    model = kind.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokens = torch.tensor(tokenizer("\n".join(texts)).input_ids)
    arguments = TrainingArguments(
        "trainer",  # in a run: its own directory
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=options.lr,
        lr_scheduler_type="constant",
        logging_steps=10,
        save_steps=options.save_steps,
        save_total_limit=2,
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        **({"fsdp": True, "fsdp_config": {"version": 2}} if options.fsdp else {}),
    )
    rows = Rows(tokens, options.length, halves=config.is_encoder_decoder)
    trainer = attach(
        Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    )
    trainer.train()
    trainer.save_model(f"{arguments.output_dir}/final")


if __name__ == "__main__":
    main()
