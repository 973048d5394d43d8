"""closing_table.py RUN SECONDS: what the demo has reached, and where to look."""

import json
import pathlib
import sys

run, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
summary = json.loads((run / "summary.json").read_text())
rows = [
    ("model", f"{summary['model']}, from scratch"),
    ("ranks", summary["ranks"]),
    ("epochs", f"{summary['epochs']} ({summary['steps']} steps)"),
    ("time", f"{seconds // 60} min {seconds % 60} s"),
    ("speed", f"{summary['images_per_second']:.1f} images/s"),
    ("memory", f"{summary['peak_pss_mib']:.0f} MiB a rank"),
    ("AP50, the other photo", f"{summary['metrics']['AP50']:.3f}"),
    ("AP, the other photo", f"{summary['metrics']['AP']:.3f}"),
    ("report", run / "report.html"),
    ("checkpoints", run / "checkpoints"),
]
width = max(len(name) for name, _ in rows)
for name, value in rows:
    print(f"[demo] {name:<{width}}  {value}")
