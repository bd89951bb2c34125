"""Compares the resident peak of recorded programs with the kernel's of plain runs, and what recording adds with what is
promised; exits with 1 where one is off, or a program that runs alone does not run recorded.

    python benchmarks/resident.py [program …]

`plain` is the median of the plain runs' peaks, and `off` is by how much the recorded one lies below or above all of
them: torch's differ by some MiB from run to run. A program of which something is not installed is left out. The plain
run says its kernel's peak (VmHWM) in its last exit callback: the interpreter's own end, which some libraries make
expensive, is in no recording.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from overhead import MODES
from run import measure, program_command

MIB = 1 << 20
ROUNDS = 5
OURS = (
    "list_objects",
    "json_roundtrip",
    "malloc_blocks",
    "dict_churn",
    "objects_tree",
    "strings",
    "sqlite_rows",
    "many_threads",
    "imports",
)
REAL = {
    "torch": ("import torch; m = torch.nn.Linear(512, 1024); o = torch.optim.Adam(m.parameters())\n"
        "for _ in range(20): m(torch.randn(256, 512)).square().mean().backward(); o.step()"),
    "transformers": ("import torch, transformers as t\n"
        "t.BertModel(t.BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2))(torch.ones((4, "
        "64), dtype=torch.long))"),
    "sympy": ("import sympy as s; x, y = s.symbols('x y'); s.expand((x + y + 1) ** 20); s.integrate(s.sin(x) ** 2 * x, "
        "x)"),
    "fastapi": "from fastapi import FastAPI; app = FastAPI(); app.get('/')(lambda: {}); app.openapi()",
    "flask": ("from flask import Flask; app = Flask('a'); app.route('/')(lambda: 'a')\n"
        "for _ in range(200): app.test_client().get('/')"),
    "django": ("import django; from django.conf import settings; "
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django.contrib.auth']); django.setup()"),
    "pandas": ("import pandas as pd; d = pd.DataFrame({'k': [i % 1000 for i in range(300_000)], 'v': range(300_000)}); "
        "d.groupby('k').v.agg(['sum', 'mean'])"),
    "sklearn": ("from sklearn.ensemble import RandomForestClassifier as F; import numpy as np; x = "
        "np.random.default_rng(1).random((3000, 20)); F(20, random_state=1).fit(x, x.sum(1) > 10)"),
    "scipy": ("import scipy.sparse as p, scipy.sparse.linalg as l, scipy.stats, numpy as np; n = 30_000; "
        "l.spsolve(p.diags([-1, 4, -1], [-1, 0, 1], shape=(n, n)).tocsc(), np.ones(n))"),
    "networkx": "import networkx as nx; g = nx.barabasi_albert_graph(8000, 5, seed=1); nx.core_number(g)",
    "matplotlib": ("import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as p, io; p.plot(range(2000)); "
        "p.savefig(io.BytesIO(), dpi=150)"),
    "jax": "import jax, jax.numpy as n; jax.jit(jax.grad(lambda w: (n.tanh(w) ** 2).sum()))(n.ones((64, 64)))",
    "polars": "import polars as p; p.DataFrame({'k': [i % 1000 for i in range(500_000)]}).group_by('k').len()",
    "ipython": ("from IPython.core.interactiveshell import InteractiveShell as S\n"
        "s = S.instance(history_load_length=0)\n"
        "for i in range(50): s.run_cell(f'x{i} = [j for j in range({i * 100})]')"),
    "sphinx": ("import io, pathlib, tempfile; from sphinx.application import Sphinx\n"
        "with tempfile.TemporaryDirectory() as d:\n"
        " p = pathlib.Path(d); (p / 'conf.py').write_text(''); (p / 'index.rst').write_text('A\\n=\\n\\n' + "
        "'\\n\\n'.join(f'*Text* {i}: ``code`` and `link <https://example.org/{i}>`_' for i in range(300)))\n"
        " Sphinx(d, d, d + '/out', d + '/trees', 'html', status=io.StringIO(), warning=io.StringIO()).build()"),
    "mypy": "import mypy.api; mypy.api.run(['-c', 'import json, email, asyncio', '--cache-dir=/dev/null'])",
    "starlette": ("import asyncio, httpx; from starlette.applications import Starlette as A; from starlette.responses "
        "import JSONResponse as J; from starlette.routing import Route\n"
        "async def page(r): return J(list(range(500)))\nasync def main():\n"
        " async with httpx.AsyncClient(transport=httpx.ASGITransport(A(routes=[Route('/', page)])), "
        "base_url='http://a') as c:\n  for _ in range(200): await c.get('/')\nasyncio.run(main())"),
    "pillow": ("from PIL import Image, ImageFilter; import io; i = Image.new('RGB', (3000, 2000), 'red').resize((1500, "
        "1000)).filter(ImageFilter.GaussianBlur(3)); i.save(io.BytesIO(), 'PNG')"),
    "lark": ("from lark import Lark; p = Lark('start: (NAME \"=\" sum \";\")*\\nsum: NUMBER (\"+\" NUMBER)*\\nNAME: "
        "/[a-z]+/\\nNUMBER: /[0-9]+/\\n%ignore \" \"', parser='lalr'); p.parse('a = 1 + 22 + 333; ' * 5000)"),
    "hypothesis": ("from hypothesis import given, settings, strategies as s\n"
        "@settings(max_examples=100, database=None)\n"
        "@given(s.lists(s.dictionaries(s.text(), s.integers())))\ndef f(x): assert x is not None\nf()"),
    "pygments": ("import pygments, pygments.lexers as l, pygments.formatters as f, inspect, typing, argparse, "
        "asyncio.events; [pygments.highlight(inspect.getsource(m), l.PythonLexer(), f.HtmlFormatter()) for m in "
        "(typing, argparse, inspect)]"),
    "jinja2": ("from jinja2 import Environment; t = Environment().from_string('{% for r in rows %}<tr>{% for c in r "
        "%}<td>{{ c|upper }}</td>{% endfor %}</tr>{% endfor %}'); t.render(rows=[[str(j) for j in range(20)] for "
        "_ in range(5000)])"),
    "jedi": ("import jedi; jedi.Script('import json, asyncio\\nasyncio.run').infer(2, 9); jedi.Script('import "
        "collections\\ncollections.').complete(2, 12)"),
    "yaml": ("import yaml; d = {f'k{i}': {'a': list(range(10)), 'b': 'text'} for i in range(1500)}; assert "
        "yaml.safe_load(yaml.safe_dump(d)) == d"),
    "rich": ("import io; from rich.console import Console; from rich.table import Table; t = Table('a', 'b', 'c')\n"
        "for i in range(2000): t.add_row(str(i), 'x' * (i % 30), '[red]y[/]')\n"
        "Console(file=io.StringIO()).print(t)"),
    "tornado": ("import asyncio; from tornado import web, httpclient, httpserver, testing, netutil\n"
        "class H(web.RequestHandler):\n def get(self): self.write({'a': list(range(300))})\nasync def main():\n"
        " s = httpserver.HTTPServer(web.Application([('/', H)])); k, port = testing.bind_unused_port(); "
        "s.add_sockets([k]); c = httpclient.AsyncHTTPClient()\n"
        " for _ in range(200): await c.fetch(f'http://127.0.0.1:{port}/')\nasyncio.run(main())"),
    "joblib": ("from joblib import Parallel, delayed; import math, numpy; sum(Parallel(4, "
        "backend='threading')(delayed(lambda n: float(numpy.ones(n).sum()))(n) for n in range(1000, 3000)))"),
    "fonttools": ("from fontTools.ttLib import TTFont; import matplotlib, os, io; from fontTools import subset; f = "
        "TTFont(os.path.join(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf')); s = subset.Subsetter(); "
        "s.populate(text='hello'); s.subset(f); f.save(io.BytesIO())"),
    "beautifulsoup": ("from bs4 import BeautifulSoup as B; B('<ul>' + ''.join(f'<li class=c{i % 7}><a href=/{i}>text "
        "{i}</a></li>' for i in range(5000)), 'html.parser').select('.c3 a')"),
    "early peak": ("import numpy as n, time; b = n.ones(300 << 20, 'u1'); time.sleep(0.3); del b; k = [str(i) for i in "
        "range(2_000_000)]"),
    "late peak": "import numpy as n; k = [str(i) for i in range(2_000_000)]; del k; b = n.ones(400 << 20, 'u1')",
    "fork": ("import os\nb = [str(i) for i in range(400_000)]\n"
        "if os.fork(): os.wait(); m = [str(i) for i in range(600_000)]"),
    "eleven seconds": ("import time, email, unittest, asyncio, xml.dom.minidom\n"
        "k = [str(i) for i in range(300_000)]; time.sleep(11); b = bytearray(40 << 20)"),
}  # fmt: skip
TELLS = """import atexit, os
def tell():
    with open("/proc/self/status") as status, open(os.environ["PLAIN_PEAK"], "w") as out:
        out.write(status.read().split("VmHWM:")[1].split()[0])
if "PLAIN_PEAK" in os.environ and os.environ.pop("IS_FIRST", ""):
    atexit.register(tell)
"""
READS = (
    "import hiwater, json, sys; r = hiwater.open(sys.argv[1]).resident; print(json.dumps([r.program_peak_bytes, "
    "r.error_bytes, r.overhead_bytes]))"
)


def command(name: str, folder: Path) -> list[str]:
    if name in OURS:
        return program_command(name)
    program = folder / "program.py"
    program.write_text(REAL[name] + "\n")
    return [str(program)]


def plain_peaks(program: list[str], folder: Path) -> list[int]:
    (folder / "sitecustomize.py").write_text(TELLS)
    told = folder / "told"
    more = {"PLAIN_PEAK": str(told), "IS_FIRST": "1", "PYTHONPATH": str(folder)}
    peaks = []
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, *program], env=os.environ | more, capture_output=True, check=False)
        if done.returncode:
            raise ChildProcessError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        peaks.append(int(told.read_text()) * 1024)
    return sorted(peaks)


def main() -> int:
    rule, missed = MODES["exact"], 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in {*REAL, *OURS}]:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join([*REAL, *OURS])}")
    print(
        f"{'program':16}{'plain':>9}{'recorded':>10}{'promise':>9}{'peak':>9}{'within':>8}{'off':>8}"
        f"{'overhead':>10}  MiB"
    )
    for name in names or [*REAL, *OURS]:
        with tempfile.TemporaryDirectory(prefix="hiwater-benchmark-") as text:
            folder = Path(text)
            try:
                program = command(name, folder)
                plain_ones = plain_peaks(program, folder)
            except ChildProcessError as error:
                print(f"{name:16} left out: {error}", flush=True)
                continue
            plain = int(statistics.median(plain_ones))
            path = folder / "c.hiw"
            try:
                recorded = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(path), *program]
                whole = measure(recorded, folder).peak_rss_bytes
            except ChildProcessError as error:
                print(f"{name:16} FAILED, recorded: {error}", flush=True)
                missed += 1
                continue
            said = subprocess.run([sys.executable, "-c", READS, path], stdout=subprocess.PIPE, check=True).stdout
        peak, error_bytes, overhead = json.loads(said)
        promise = int(rule.rss_factor * plain) + rule.rss_extra_bytes
        off = peak - min(max(peak, plain_ones[0]), plain_ones[-1])
        wrong = " OUTSIDE" * (abs(off) > error_bytes) + " PROMISE" * (whole > promise)
        missed += bool(wrong)
        figures = [plain, whole, promise, peak, error_bytes, off, overhead]
        widths = (9, 10, 9, 9, 8, 8, 10)
        print(
            f"{name:16}"
            + "".join(f"{one / MIB:{width}.1f}" for one, width in zip(figures, widths, strict=True))
            + wrong,
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
