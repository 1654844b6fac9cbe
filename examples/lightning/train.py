"""Train a small model with Lightning, as a run that stops and resumes.

    fsdpkit submit examples/lightning/train.py --nodes 2 --gpus 4
    python examples/lightning/train.py                            # one process, no cluster

The only line for fsdpkit is `attach`. The data is random; replace `rows` with yours. Works with
`lightning` or `pytorch_lightning`.
"""

import argparse
import os

import torch
from torch import nn

try:
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
except ImportError:
    from pytorch_lightning import LightningModule, Trainer, seed_everything
    from pytorch_lightning.callbacks import ModelCheckpoint

from fsdpkit.script.lightning import attach

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--save-steps", type=int, default=100)
parser.add_argument("--rows", type=int, default=4096)
parser.add_argument("--batch", type=int, default=32, help="rows a rank")
parser.add_argument("--lr", type=float, default=1e-3)
options = parser.parse_args()


class Classifier(LightningModule):
    """Which of four corners a point is nearest to, learned with dropout."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def rows(count: int, seed: int) -> torch.utils.data.TensorDataset:
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(points, (points[:, 0] > 0) * 2 + (points[:, 1] > 0))


def main() -> None:
    seed_everything(42)
    loader = torch.utils.data.DataLoader(rows(options.rows, 0), options.batch, shuffle=True)
    held_out = torch.utils.data.DataLoader(rows(256, 1), options.batch)
    trainer = attach(
        Trainer(
            accelerator="auto",
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
            max_epochs=options.epochs,
            log_every_n_steps=10,
            callbacks=[ModelCheckpoint(every_n_train_steps=options.save_steps)],
            logger=False,  # or any of Lightning's
            enable_progress_bar=False,
        )
    )
    trainer.fit(Classifier(options.lr), loader, held_out)
    trainer.save_checkpoint(f"{trainer.checkpoint_callback.dirpath}/final.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
