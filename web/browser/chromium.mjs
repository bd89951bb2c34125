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

/** Run `act(page)` in a browser, with cookies, storage and settings of its own. */
async function inContext(browser, options, act) {
    const context = await browser.newContext({ viewport: { width: 1400, height: 1000 }, ...options });
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

/** Run `act(page, record)` with a file; `record.complaints` has console errors, page errors, and requests beside the page's own. */
export function withPage(browser, path, options, act) {
    return inContext(browser, options, (page) => {
        const url = pathToFileURL(path).href;
        const record = { complaints: [], url };
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
                request.url() !== url &&
                record.complaints.push(`request: ${request.url()}`),
        );
        return act(page, record);
    });
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
