// Makes the types of a page's data from its schema, and the page's template, which is committed, from the sources.
//
//   node build.mjs            writes both
//   node build.mjs --check    writes the types, and says whether the template differs from the committed one
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { compile } from "json-schema-to-typescript";

const HERE = dirname(fileURLToPath(import.meta.url));
const REPORT = join(HERE, "../src/hiwater/report");
const MOST_GZIPPED_BYTES = 90 * 1024;
const PARTS = ["preact", "uplot"]; // what is in the page that others wrote, all of it under the MIT licence
const ICON =
    "data:image/svg+xml," +
    encodeURIComponent(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M1 12c2 0 2-8 4.5-8S8 9 10 9s2-3 5-3" fill="none" stroke="#2f6fb2" stroke-width="2" stroke-linecap="round"/></svg>',
    );

/** Without words beside references: each would become a type of its own. */
function plain(value) {
    if (Array.isArray(value)) return value.map(plain);
    if (value === null || typeof value !== "object") return value;
    if (value.$ref) return { $ref: value.$ref };
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, plain(member)]));
}

async function types() {
    const bannerComment =
        "// Made from src/hiwater/report/schemas/page.schema.json by build.mjs; do not change it here.";
    const schema = JSON.parse(readFileSync(join(REPORT, "schemas/page.schema.json"), "utf8"));
    return compile(plain(schema), "HiwaterPage", {
        bannerComment,
        additionalProperties: false,
        unreachableDefinitions: false,
    });
}

async function bundled(entry, extra = {}) {
    const result = await build({
        entryPoints: [join(HERE, entry)],
        bundle: true,
        minify: true,
        write: false,
        charset: "ascii",
        legalComments: "none",
        absWorkingDir: HERE,
        logLevel: "warning",
        ...extra,
    });
    return result.outputFiles[0].text.trim();
}

/** The notice that the licences of the page's parts ask for, in every copy of the page. */
function notice() {
    const texts = PARTS.map((name) => readFileSync(join(HERE, "node_modules", name, "LICENSE"), "utf8"));
    const owners = texts.map((text, index) => `${PARTS[index]} ${/Copyright \(c\).*/.exec(text)[0]}`);
    const [terms, ...others] = texts.map((text) =>
        text.slice(text.indexOf("Permission is hereby granted")).replace(/\s+/g, " ").trim(),
    );
    if (others.some((other) => other !== terms)) throw new Error("the licences of the page's parts differ");
    return `hiwater's report, Apache-2.0, with\n${owners.join("\n")}\n${terms}`;
}

const hash = (text) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

async function template() {
    const script =
        `/* ${notice()} */\n` +
        (await bundled("src/main.tsx", {
            format: "iife",
            target: "es2022",
            jsx: "automatic",
            jsxImportSource: "preact",
        }));
    const style = await bundled("src/style.css", { target: ["chrome112", "firefox115", "safari16.4"] });
    for (const text of [script, style]) {
        if (/<\/(script|style)|<!--|<script/i.test(text))
            throw new Error("the bundle would end the element that it stands in");
    }
    const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; base-uri 'none'; form-action 'none'`;
    return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="hiwater">
<link rel="icon" href="${ICON}">
<title>{{title}}</title>
<style>${style}</style>
</head>
<body>
<div id="app">{{summary}}</div>
<script type="application/octet-stream" id="data">{{data}}</script>
<script>${script}</script>
</body>
</html>
`;
}

writeFileSync(join(HERE, "src/page.ts"), await types());
const page = join(REPORT, "html/page.template.html");
const made = await template();
const gzipped = gzipSync(made, { level: 9 }).length;
console.log(`page.template.html: ${made.length} bytes, ${gzipped} gzipped (at most ${MOST_GZIPPED_BYTES})`);
let status = gzipped > MOST_GZIPPED_BYTES ? 1 : 0;
if (!process.argv.includes("--check")) {
    writeFileSync(page, made);
} else if (readFileSync(page, "utf8") !== made) {
    console.error(`${page} is not what the sources make: run \`make web\` and commit it`);
    status = 1;
}
process.exit(status);
