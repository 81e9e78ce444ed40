import torch
from composer import Trainer
from composer.models import ComposerClassifier
from composer.utils import dist

torch.manual_seed(0)
model = ComposerClassifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4)), num_classes=4)
data = torch.utils.data.TensorDataset(torch.randn(16, 1, 4, 4), torch.randint(0, 4, (16,)))
dist.initialize_dist("cpu", timeout=60)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=dist.get_sampler(data, drop_last=True, shuffle=False))
trainer = Trainer(
    model=model, train_dataloader=loader, max_duration="2ba", device="cpu", progress_bar=False,
    optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
)  # fmt: skip
trainer.fit()
if dist.get_global_rank() == 0:
    print(f"STEP loss {trainer.state.loss.item():.4f} after {trainer.state.timestamp.batch}", flush=True)
