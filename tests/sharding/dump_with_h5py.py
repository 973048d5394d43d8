"""Prints a data set as h5py sees it, for dataset_test.cc: the format must be readable without Lockstep."""
import pathlib
import sys

import h5py

folder = pathlib.Path(sys.argv[1])
index = h5py.File(folder / "index.h5")


def drops(name):
    group = index["dropped"][name]
    return ",".join(f"{reason.decode()}={count}" for reason, count in zip(group["reasons"], group["counts"]))


classes = ",".join(name.decode() for name in index["classes"])
print(index.attrs["task"].decode(), index.attrs["encoding"].decode(), classes, drops("images"), drops("boxes"))

names = bytes(index["names"][:])
for shard_number, first in enumerate(index["shard_begin"][:-1]):
    shard = h5py.File(folder / f"shard-{shard_number:05}.h5")
    offsets = shard["offsets"][:]
    for i, crc in enumerate(shard["crc32c"]):
        sample = first + i
        stored = shard["pool"][offsets[i] : offsets[i + 1]]
        name = names[index["name_offsets"][sample] : index["name_offsets"][sample + 1]].decode()
        size = f"{index['width'][sample]}x{index['height'][sample]}"
        boxes = index["boxes"][index["box_offsets"][sample] : index["box_offsets"][sample + 1]]
        fields = [" [" + " ".join(f"{value:g}" for value in box) + "]" for box in boxes]
        print(index["image_id"][sample], name, size, len(stored), int(stored.sum(dtype=int)), crc, end="")
        print("".join(fields))
