"""Fine-tune a model in Hugging Face's format with its Trainer, as a run that stops and resumes.

    fsdpkit submit examples/huggingface/train.py --nodes 2 --gpus 4 -- --model DIRECTORY
    python examples/huggingface/train.py --model DIRECTORY        # one process, no cluster

DIRECTORY has config.json, weights and a tokenizer of a causal or an encoder-decoder model. The text
is Python's own documentation, or that of `--text`. The only line for fsdpkit is `attach`;
`sharded.py` does the same without a Trainer.
"""

import torch
from rows import SEED, options_of, rows_of
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

parser = options_of(__doc__.partition("\n")[0])
parser.add_argument("--fsdp", action="store_true", help="shard the model by FSDP2")
options = parser.parse_args()


def main() -> None:
    config = AutoConfig.from_pretrained(options.model)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    set_seed(SEED)
    model = kind.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
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
        # Rows are of one length. T5 leaves out the count of all ranks' tokens that the Trainer then
        # multiplies by, and its loss would be as many times too large as there are ranks.
        average_tokens_across_devices=False,
        report_to="none",
        disable_tqdm=True,
        **({"train_sampling_strategy": "sequential"} if options.in_order else {}),
        **({"fsdp": True, "fsdp_config": {"version": 2}} if options.fsdp else {}),
    )
    rows = rows_of(options, tokenizer, halves=config.is_encoder_decoder)
    trainer = attach(
        Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    )
    trainer.train()
    trainer.save_model(f"{arguments.output_dir}/final")


if __name__ == "__main__":
    main()
