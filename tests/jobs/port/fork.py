"""Forked processes that use the device."""
import multiprocessing

from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __getitem__(self, index):
        return self.rows[index].to(device)  # finds fork


def collate(batch):
    return stack(
        batch,
        device=device,  # finds fork
    )


def placed(batch):
    return batch.to(device)


def work(x):
    x.to(device)


def count(x):
    return len(x)


loader = DataLoader(Rows(), batch_sampler=sampler, num_workers=4, collate_fn=collate)
here = DataLoader(Rows(), batch_sampler=sampler, num_workers=0, collate_fn=placed)
multiprocessing.Process(target=count, args=(3,)).start()
multiprocessing.Process(target=work, args=(3,)).start()  # finds fork
multiprocessing.set_start_method("fork")  # finds fork
