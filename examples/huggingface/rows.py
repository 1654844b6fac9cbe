"""What `train.py` and `sharded.py` share: their options, and the rows that they train on.

All rows have the same length, so that no padding changes a mean, and an order that both programs
can keep: `--in-order` compares them step by step.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor

SEED = 42  # of dropout, and of the order of rows


def options_of(title: str) -> argparse.ArgumentParser:
    """The options of both; each may add its own."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--model", required=True, help="directory in Hugging Face's format")
    parser.add_argument("--text", type=Path, help="file in UTF-8 (default: Python's documentation)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="rows a rank")
    parser.add_argument("--length", type=int, default=64, help="tokens a row")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--in-order", action="store_true", help="do not shuffle the rows")
    return parser


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of `length` tokens; an encoder-decoder reads the first half, writes the second."""

    def __init__(self, tokens: Tensor, length: int, halves: bool) -> None:
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)
        self.halves = halves

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index]
        if not self.halves:
            return {"input_ids": row, "labels": row}
        middle = len(row) // 2
        return {"input_ids": row[:middle], "labels": row[middle:]}


def rows_of(options: argparse.Namespace, tokenizer: Any, halves: bool) -> Rows:
    """The text as rows of token ids, int64."""
    text = options.text.read_text("utf-8") if options.text else "\n".join(topics.values())
    return Rows(torch.tensor(tokenizer(text).input_ids), options.length, halves)
