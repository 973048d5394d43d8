"""traffic_test.py LOCKSTEP: how many bytes leave a simulated machine in an all-reduce over links of 1 Gbit/s, by the counters
of its network interface. Bytes are asserted; times are printed beside what the link alone would take."""

import json
import os
import subprocess
import sys
import unittest

from simulated_nodes import Nodes, reason_to_skip

LOCKSTEP = sys.argv[1]
MIB = 1 << 20
RATE = "1gbit"
LINK_BYTES_PER_SECOND = 1e9 / 8
SHAPES = [(2, 1, "slot"), (2, 2, "slot"), (2, 2, "node"), (2, 4, "slot"), (2, 4, "node"), (4, 2, "slot"), (4, 2, "node")]
LIMIT = 120  # seconds for one shape


@unittest.skipIf(reason_to_skip(RATE), reason_to_skip(RATE))
class TrafficOfAllReduce(unittest.TestCase):
    def rows(self, machines, ranks_per_machine, placement, size):
        nodes = Nodes(machines, RATE)
        self.addCleanup(nodes.down)
        try:
            command = nodes.mpirun(ranks_per_machine, "--map-by", placement, LOCKSTEP, "bench", "collectives", "--sizes", size,
                                   "--wires", "bf16", "--peers", "--seconds", 0.1, "--json")
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=os.environ | {"OMP_NUM_THREADS": "1"})
        finally:
            nodes.down()
        self.assertEqual(0, done.returncode, done.stderr[-3000:])
        return {row["algorithm"]: row for row in json.loads(done.stdout)["rows"]}

    def test_each_byte_crosses_the_network_once_each_way(self):
        size = int(os.environ.get("LOCKSTEP_TRAFFIC_MIB", "8")) * MIB
        for machines, ranks_per_machine, placement in SHAPES:
            shape = f"{machines}x{ranks_per_machine} by {placement}"
            with self.subTest(shape):
                rows = self.rows(machines, ranks_per_machine, placement, size)
                least = 2 * (machines - 1) / machines * size
                ours = "mpi" if ranks_per_machine == 1 else "hierarchical"
                for algorithm, factor in ((ours, 1), (f"{ours} bf16", 0.5)):
                    row = rows[algorithm]
                    print(f"{shape:12} {algorithm:18} {row['network_bytes'] / least:6.3f} of 2(M-1)/M x S,"
                          f" {row['median_ms'] / 1e3 / (factor * least / LINK_BYTES_PER_SECOND):5.2f} times the link's time,"
                          f" {row['median_ms'] / rows['peer:mpi']['median_ms']:5.2f} times MPI_Allreduce's")
                    self.assertEqual(0, row["wrong"])
                    self.assertLessEqual(row["network_bytes"], 1.03 * factor * least, algorithm)
                    # Fewer can't do; that would be a counter that doesn't count.
                    self.assertGreaterEqual(row["network_bytes"], factor * least, algorithm)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
