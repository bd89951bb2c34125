// A page in a real Chromium, with everything it complains of and asks for on record.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

export function executable() {
    const known = [
        process.env.HIWATER_CHROMIUM,
        "/usr/bin/chromium",
        "/usr/bin/chromium-browser",
        "/usr/bin/google-chrome",
    ];
    return known.find((path) => path && existsSync(path));
}

export const launch = () => chromium.launch({ executablePath: executable(), args: FLAGS });

export const VIEWPORT = { width: 1400, height: 1000 };

/** Run `act(page)` in a browser, with cookies, storage and settings of its own. */
async function inContext(browser, options, act) {
    const context = await browser.newContext({ viewport: VIEWPORT, ...options });
    try {
        return await act(await context.newPage());
    } finally {
        await context.close();
    }
}

/** Run `act(page)` in a fresh browser. */
export async function withBrowser(options, act) {
    const browser = await launch();
    try {
        return await inContext(browser, options, act);
    } finally {
        await browser.close();
    }
}

/** A record that `complaints` are added to from now on: console errors, page errors, and requests for anything but `url`, which is the caller's to set. */
export function watch(page) {
    const record = { complaints: [], url: "" };
    page.on(
        "console",
        (message) =>
            ["error", "warning"].includes(message.type()) && record.complaints.push(`console: ${message.text()}`),
    );
    page.on("pageerror", (error) => record.complaints.push(`error: ${error.message}`));
    page.on(
        "request",
        (request) =>
            !/^(data|about):/.test(request.url()) &&
            request.url() !== record.url &&
            record.complaints.push(`request: ${request.url()}`),
    );
    return record;
}

export const urlOf = (path) => pathToFileURL(path).href;

/** Run `act(page, record)` with a file, in a context of its own. */
export function withPage(browser, path, options, act) {
    return inContext(browser, options, (page) => act(page, Object.assign(watch(page), { url: urlOf(path) })));
}

/** Milliseconds from an act in the page to the frame that shows it. */
export function timed(page, act, argument) {
    return page.evaluate(
        async ([body, given]) => {
            const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
            await frame();
            const started = performance.now();
            new Function("given", `(${body})(given)`)(given);
            await frame();
            return performance.now() - started;
        },
        [act.toString(), argument],
    );
}
