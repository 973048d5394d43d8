"""The other side of hdf5_test: reads with h5py what Hdf5File wrote, and writes what other programs might."""

import sys

import h5py
import numpy as np


def show(path):
    """A line per object, in an order and form that the test compares as text."""
    with h5py.File(path, "r") as file:
        for name, value in sorted(file.attrs.items()):
            print("attribute", name, value.decode() if isinstance(value, bytes) else value)

        def show_object(name, item):
            if not isinstance(item, h5py.Dataset):
                return
            values = item[()]
            if values.dtype.kind == "S":
                values = np.char.decode(values, "utf-8")
            print(name, item.dtype, item.shape, "chunks", item.chunks, "values", values.ravel().tolist())

        file.visititems(show_object)


def write_foreign(folder):
    def create(name):
        return h5py.File(f"{folder}/{name}.h5", "w")

    with create("plain") as file:
        file["numbers"] = np.arange(6, dtype=np.uint32).reshape(2, 3)
        file["big_endian"] = np.array([1, -2, 3], dtype=">i4")
        file["names"] = np.array([b"cat", b"", b"horse"], dtype="S5")
        file.attrs["count"] = np.uint16(9)
        file.attrs["source"] = np.bytes_("h5py")
    with create("other_types") as file:
        file["variable_text"] = np.array(["cat"], dtype=h5py.string_dtype())
        file["compound"] = np.zeros(3, dtype=[("x", "f4"), ("y", "f4")])
        file["boolean"] = np.array([True, False])
        file["nothing"] = h5py.Empty("f4")
        file.attrs["variable_text"] = "text"
        file.attrs["signed"] = -5
        file.attrs["array"] = np.array([1, 2], dtype=np.uint64)
    with create("other_layouts") as file:
        values = np.arange(1000, dtype=np.int32)
        file.create_dataset("chunked", data=values, chunks=(100,))
        file.create_dataset("compressed", data=values, compression="gzip")
        file.create_dataset("never_written", shape=(1000,), dtype="i4")
        file.create_dataset("enormous", shape=(1 << 60,), dtype="i4")
        file.create_dataset("external", data=values, external=[(f"{folder}/external.raw", 0, 4000)])
        layout = h5py.VirtualLayout(shape=(6,), dtype="u4")
        layout[:] = h5py.VirtualSource(f"{folder}/elsewhere.h5", "numbers", shape=(6,))
        file.create_virtual_dataset("virtual", layout)
        file["link_outside"] = h5py.ExternalLink(f"{folder}/plain.h5", "numbers")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file.create_group("group")


{"show": show, "write_foreign": write_foreign}[sys.argv[1]](sys.argv[2])
