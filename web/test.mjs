// Runs the tests in test/: each is bundled with what it imports and given to node's own test runner.
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "hiwater-web-"));
const tests = readdirSync(join(HERE, "test")).filter((name) => name.endsWith(".test.ts"));
await build({
    entryPoints: tests.map((name) => join(HERE, "test", name)),
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    jsx: "automatic",
    jsxImportSource: "preact",
    logLevel: "warning",
});
const made = tests.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...made], { stdio: "inherit" });
rmSync(folder, { recursive: true });
process.exit(status ?? 1);
