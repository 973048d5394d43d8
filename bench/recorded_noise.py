#!/usr/bin/env python3
"""recorded_noise.py SWEEP: the launches of a sweep without factors (bench/plans/noise.toml), in the order in which they were made,
as the JSON that tests/bench/noise_test reads. Prints it.

    lockstep bench run bench/plans/noise.toml --out runs/noise
    bench/recorded_noise.py runs/noise > tests/bench/recorded_noise.json
"""

import json
import pathlib
import sys

if len(sys.argv) != 2:
    sys.exit(__doc__)
records = [json.loads(path.read_text()) for path in pathlib.Path(sys.argv[1], "records").glob("*.json")]
records = sorted((record for record in records if record["status"] == "ok"), key=lambda record: record["order"])
if not records:
    sys.exit(f"{sys.argv[1]}: no launch that succeeded")
if {record["arm"] for record in records} - {"baseline", "again"}:
    sys.exit(f"{sys.argv[1]}: its launches are not all alike")
provenance = records[0]["provenance"]
print(json.dumps({
    "about": "seconds per image of launches that are all alike, in the order in which they were made",
    "recorded": records[0]["started"],
    "cpu": provenance["cpu"], "cores": provenance["cores"], "commit": provenance["commit"],
    "steps": len(records[0]["steps"]["seconds"]),
    "foreign_cpu": [round(record["outcome"]["foreign_cpu"], 4) for record in records],
    "seconds_per_image": [record["metrics"]["seconds_per_image"] for record in records],
}, indent=1))
