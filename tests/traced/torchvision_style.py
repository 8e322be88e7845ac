"""torchvision's ResNet, trained as in its reference; `python torchvision_style.py right|same_order_every_epoch`."""

import sys

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(case: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torchvision.models.resnet18(num_classes=4)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if torch.cuda.is_available() else model
    model = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(10 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    data = TensorDataset(torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(2)), torch.arange(24) % 4)
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        if case == "right":
            sampler.set_epoch(epoch)
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
