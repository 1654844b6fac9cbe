"""Fine-tune a model in Hugging Face's format in your own loop, sharded by fsdpkit.

    fsdpkit submit examples/huggingface/sharded.py --nodes 2 --gpus 4 -- --model DIRECTORY
    torchrun --nproc-per-node 2 examples/huggingface/sharded.py --model DIRECTORY --steps 20
    fsdpkit plan --gpu 80 --model examples/huggingface/sharded.py:planned -- --model DIRECTORY

DIRECTORY has config.json, safetensors and a tokenizer of a causal or an encoder-decoder model; each
rank reads its own part of the weights. The trained model is in the run's `export/`, for
`from_pretrained`. `train.py` does the same with a Trainer.
"""

import sys
from typing import Any

import torch
from rows import SEED, options_of, rows_of
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from fsdpkit import training
from fsdpkit.training.distributed import on_first, set_timeout
from fsdpkit.training.export import export_hugging_face
from fsdpkit.training.heartbeat import Heartbeat

TITLE = "Fine-tune a model in Hugging Face's format, sharded by fsdpkit."


def planned() -> dict[str, Any]:
    """What fsdpkit plan --model examples/huggingface/sharded.py:planned -- OPTIONS asks for."""
    options = options_of(TITLE).parse_args()
    model = training.pretrained(options.model).model
    config: Any = model.config
    length = options.length // 2 if config.is_encoder_decoder else options.length
    ids = torch.zeros(options.batch, length, dtype=torch.int64)  # of one rank and step
    return {"model": model, "batch": {"input_ids": ids, "labels": ids}}


def main() -> int:
    options = options_of(TITLE).parse_args()
    paths = training.TaskPaths.of_this_job("sharded-run")
    with training.process_group() as ranks:
        heartbeat = Heartbeat(paths, ranks)
        source = training.pretrained(options.model)  # without memory for its weights
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
        config: Any = source.model.config
        rows = rows_of(options, tokenizer, halves=config.is_encoder_decoder)
        order = training.GlobalOrderSampler(
            rows,
            num_replicas=ranks.world_size,
            rank=ranks.rank,
            shuffle=not options.in_order,
            seed=SEED,
        )
        groups = training.GlobalBatches(order, options.batch, drop_last=True)
        loader = DataLoader(rows, batch_sampler=groups)

        sharding = training.ShardingSettings(strategy="full_shard")
        precision = training.PrecisionSettings(param="auto")  # bfloat16 on GPUs that have it
        model = training.shard(source.model, sharding, precision, ranks, fill=source.fill)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)

        saves = training.Checkpointer(
            paths, ranks, model, optimizer, data=training.data_order(loader), export=source.export
        )
        progress = saves.resume() or training.Progress()
        heartbeat.resumed(progress.step)
        metrics = training.Metrics(paths, ranks, progress.tokens, planned_steps=options.steps)
        stop, stopping = training.StopRequest(paths, ranks), False
        clock = training.SaveClock(
            ranks, every_minutes=0, paths=paths, every_steps=options.save_steps
        )
        votes = training.Votes(ranks, stop, clock)
        batches = training.endless(loader, progress)
        model.train()
        while progress.step < options.steps and not stopping:
            training.seed_step(SEED, progress.step, ranks.rank)  # dropout, as if never interrupted
            batch = {name: ids.to(ranks.device) for name, ids in next(batches).items()}
            count_all = votes.begin(batch["labels"].numel())
            loss = model(**batch).loss  # a mean; each rank has as many tokens
            loss.backward()
            grad_norm = training.clip_gradients(model, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            (tokens,) = count_all()
            progress.step += 1
            metrics.step(loss.detach() * batch["labels"].numel(), tokens, tokens)
            heartbeat.step(progress.step)
            stopping, last = stop.agreed(), progress.step == options.steps
            if progress.step % 10 == 0 or last:
                line = metrics.log(progress.step, lr=options.lr, grad_norm=grad_norm)
                ranks.say(f"step {progress.step}  loss {line['loss']:.4f}")
            if clock.due(progress.step, last=last, stopping=stopping):
                progress.tokens = metrics.settle()
                saves.save(progress)
        heartbeat.ending()
        saves.close()
        metrics.close()
        if progress.step == options.steps:
            set_timeout(3600)  # the others wait for the one that writes
            trained = paths.checkpoints / f"step-{progress.step}"
            on_first(ranks, lambda: export_hugging_face(trained, paths.export))
            ranks.say(f"exported to {paths.export}")
            stopping = False
    return training.STOPPED_EARLY if stopping else 0


if __name__ == "__main__":
    sys.exit(main())
