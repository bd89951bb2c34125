// What a reader does with a page, done in a real Chromium. Each line of standard input is a JSON list of a scenario and a page's path; for each a
// line is printed: `{"seen": …}` with what the reader saw, or `{"error": …}`.
//
// The pages are made by tests/page/test_page_browser.py, which knows what must be seen. A page that complains on the console, or asks
// for anything beside itself, fails whatever it shows.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { launch, urlOf, VIEWPORT, watch, withPage } from "./chromium.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const SHOWN = { timeout: 120_000 };

/** Until what was done is to be seen. */
const settled = (page) =>
    page.evaluate(
        () =>
            new Promise((resolve) =>
                requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => setTimeout(resolve, 0)), 0)),
            ),
    );

async function text(page, selector) {
    await settled(page);
    return page.locator(selector).first().innerText();
}
const moment = (page) => text(page, "#moment b");
async function root(page) {
    await settled(page);
    return (await page.getAttribute(".flame canvas", "aria-label")).match(/: (.*?) at/)[1];
}
const told = (page) => text(page, "#told");

async function zoomed(page) {
    await settled(page);
    return page.getByRole("button", { name: "Show all" }).count();
}

/** The place on the screen of a time, as a part of the recording. */
async function at(page, part) {
    const box = await page.locator(".u-over").boundingBox();
    return [box.x + part * box.width, box.y + box.height / 2];
}

/** The canvas as an image, to see that it was drawn and drawn anew. */
async function drawn(page) {
    await settled(page);
    return page.evaluate(() => document.querySelector(".flame canvas").toDataURL());
}

const SCENARIOS = {
    async brush(page) {
        const seen = { peak: [await moment(page), await root(page)] };
        const before = await drawn(page);
        await page.mouse.move(...(await at(page, 0.21)));
        await page.mouse.down();
        await page.mouse.move(...(await at(page, 0.3)), { steps: 4 });
        await page.mouse.move(...(await at(page, 0.48)), { steps: 4 });
        await page.mouse.up();
        seen.window = [await moment(page), await root(page)];
        assert.notEqual(await drawn(page), before);
        await page.mouse.click(...(await at(page, 0.05)));
        seen.instant = [await moment(page), await root(page)];
        await page.locator(".plot").focus();
        await page.keyboard.press("ArrowRight");
        seen.next = [await moment(page), await root(page)];
        await page.keyboard.press("End");
        seen.end = [await moment(page), await root(page)];
        await page.keyboard.press("Home");
        seen.home = [await moment(page), await root(page)];
        await page.getByRole("tab", { name: "Table" }).click();
        await page.mouse.click(...(await at(page, 0.05)));
        seen.table = await text(page, ".table-view tbody td b");
        return seen;
    },

    async timeline(page) {
        const legend = (await text(page, ".legend")).replace(/\s+/g, " ");
        return { legend, drawn: await page.evaluate(() => document.querySelector(".plot canvas").toDataURL()) };
    },

    async search(page) {
        const before = await drawn(page);
        await page.keyboard.press("/");
        await page.keyboard.type("small");
        const seen = { part: await text(page, "#found") };
        assert.notEqual(await drawn(page), before);
        await page.fill("#search", "/^big|small$/");
        seen.regular = await text(page, "#found");
        await page.fill("#search", "/(/");
        seen.wrong = await text(page, "#found");
        await page.press("#search", "Escape");
        seen.none = await text(page, "#found");
        assert.equal(await drawn(page), before);
        return seen;
    },

    async keyboard(page) {
        await page.locator(".flame canvas").focus();
        const seen = [await told(page)];
        const press = async (key) => {
            await page.keyboard.press(key);
            seen.push(await told(page));
        };
        await press("ArrowDown");
        await press("ArrowDown");
        await press("ArrowRight");
        assert.equal(await zoomed(page), 0);
        await press("Enter");
        assert.equal(await zoomed(page), 1);
        await press("ArrowUp");
        await press("Escape");
        assert.equal(await zoomed(page), 0);
        await page.mouse.click(
            ...(await page
                .locator(".flame canvas")
                .boundingBox()
                .then((box) => [box.x + 20, box.y + 30])),
        );
        assert.equal(await zoomed(page), 1);
        assert.equal(await page.locator(".panel").count(), 0);
        await page.keyboard.press("d");
        seen.push(await told(page), await text(page, ".panel h2"), await text(page, ".panel .big"));
        return seen;
    },

    async looks(page) {
        const drawings = new Set([await drawn(page)]);
        const differs = async (what) => {
            const size = drawings.size;
            drawings.add(await drawn(page));
            assert.equal(drawings.size, size + 1, `${what} draws the same`);
        };
        await page.keyboard.press("i");
        assert.equal(await page.getByRole("button", { name: "Invert" }).getAttribute("aria-pressed"), "true");
        await differs("inverted");
        await page.getByRole("button", { name: "Flip" }).click();
        await differs("root below");
        await page.getByLabel("Colour by").selectOption("module");
        await differs("by module");
        await page.getByLabel("Libraries").selectOption("shown");
        await differs("all libraries");
        await page.getByLabel("Libraries").selectOption("hidden");
        await differs("no libraries");
        await page.getByLabel("hide frames").fill("small");
        await page.keyboard.press("Enter");
        await differs("left out");
        const whole = await root(page);
        await page.locator(".moment label", { hasText: "Thread" }).locator("select").selectOption({ label: "worker" });
        await differs("one thread");
        return { whole, thread: await root(page), moment: await moment(page) };
    },

    /** What a reader sees at 1440 × 900 without scrolling: heights in pixels, and rows of the flame graph. */
    async glance(page) {
        await page.setViewportSize({ width: 1440, height: 900 });
        await settled(page);
        const box = (selector) => page.locator(selector).first().boundingBox();
        const [bar, answer, timeline] = [await box(".bar"), await box(".answer"), await box("section.timeline")];
        const [flame, view] = [await box(".flame-scroll"), await box("#view")];
        const rows = await page.evaluate(() => {
            const canvas = document.querySelector(".flame canvas");
            const { top } = canvas.getBoundingClientRect();
            const data = canvas.getContext("2d");
            const height = Math.min(canvas.clientHeight, window.innerHeight - Math.ceil(top));
            const column = data.getImageData(30, 0, 1, height).data;
            let rows = 0;
            for (let y = 10; y + 11 <= height; y += 21) rows += Number(column[4 * y + 3] > 0);
            return rows;
        });
        return {
            answer: await text(page, ".answer"),
            above: answer.y + answer.height < timeline.y && timeline.y + timeline.height < flame.y,
            bar: bar.height,
            timeline: timeline.height,
            rows,
            whole: flame.width === view.width,
            panels: await page.locator(".panel").count(),
        };
    },

    async mine(page) {
        await page.getByRole("tab", { name: "My lines" }).click();
        const order = await page.getByRole("tab").allInnerTexts();
        const rows = () =>
            page
                .locator(".table-view tbody tr")
                .evaluateAll((found) =>
                    found.map((row) => Array.from(row.querySelectorAll("td"), (cell) => cell.innerText.trim())),
                );
        const seen = { order, rows: await rows(), sums: await text(page, ".my-lines .controls") };
        seen.curves = await page.locator(".my-lines td .spark").count();
        seen.hints = await page.locator(".advice-list > ul > li").allInnerTexts();
        seen.untouched = await page.locator(".untouched").allInnerTexts();
        if (await page.locator(".expand").count()) {
            await page.locator(".expand").first().click();
            seen.inside = await page.locator(".inside li").allInnerTexts();
        }
        await page.getByRole("button", { name: "End", exact: true }).click();
        seen.end = await rows();
        return seen;
    },

    /** A collapsed frame opens on a click, under the line that called it. */
    async collapsed(page) {
        const canvas = page.locator(".flame canvas");
        await canvas.focus();
        const names = async () => {
            const seen = [];
            await page.keyboard.press("Home");
            for (let last = ""; (await told(page)) !== last; await page.keyboard.press("ArrowDown")) {
                last = await told(page);
                seen.push(last.split(",")[0]);
            }
            return seen;
        };
        await page.keyboard.press("ArrowDown");
        await page.keyboard.press("ArrowRight");
        await page.keyboard.press("Enter");
        const seen = { collapsed: await names() };
        for (const key of ["Home", "ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
        seen.opened = await names();
        seen.root = await root(page);
        await page.fill("#search", "big");
        seen.found = await text(page, "#found");
        return seen;
    },

    async native(page) {
        const seen = { whole: await root(page) };
        await page.getByRole("tab", { name: "Table" }).click();
        for (const code of ["python", "mixed", "native"]) {
            await page.getByLabel("Code").selectOption(code);
            await settled(page);
            seen[code] = (await page.locator(".table-view tbody").allInnerTexts()).join("\n");
        }
        await page.getByRole("tab", { name: "Flame graph" }).click();
        seen.native_root = await root(page);
        return seen;
    },

    async inverted(page) {
        await page.keyboard.press("d");
        const figures = async () => [await root(page), await page.locator(".panel dd").allInnerTexts()];
        const seen = [await figures()];
        await page.keyboard.press("i");
        seen.push(await figures());
        return seen;
    },

    async hover(page) {
        await page.mouse.move(...(await at(page, 0.65)));
        return { tip: await text(page, ".values"), hint: await text(page, ".timeline .hint") };
    },

    async resident(page) {
        await page.getByRole("tab", { name: "Resident" }).click();
        return text(page, "#view");
    },

    /** By how many pixels the page is too wide for a telephone, in each tab. */
    async narrow(page) {
        await page.setViewportSize({ width: 420, height: 800 });
        const seen = {};
        for (const name of await page.getByRole("tab").allInnerTexts()) {
            await page.getByRole("tab", { name }).click();
            await settled(page);
            seen[name] = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        }
        return seen;
    },

    async theme(page) {
        const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        const seen = [await paper()];
        const canvas = await drawn(page);
        await page.getByRole("button", { name: /^Theme/ }).click();
        seen.push(await paper());
        assert.notEqual(await drawn(page), canvas);
        await page.getByRole("button", { name: /^Theme/ }).click();
        seen.push(await paper());
        assert.equal((await page.pdf()).subarray(0, 5).toString(), "%PDF-");
        return seen;
    },

    async table(page) {
        await page.getByRole("tab", { name: "Table" }).click();
        const column = (number) => page.locator(`.table-view tbody td:nth-child(${number})`).allInnerTexts();
        const seen = { own: await column(1), names: await column(4) };
        await page.getByRole("button", { name: "Total", exact: true }).click();
        seen.total = await column(2);
        await page.getByRole("button", { name: "Total", exact: true }).click();
        seen.up = await column(2);
        await page.getByLabel("filter rows").fill("SMALL");
        seen.filtered = await column(4);
        await page.getByLabel("filter rows").fill("");
        for (const by of ["Line", "File", "Module", "Kind", "Size of allocations", "Thread"]) {
            await page.getByRole("group", { name: "rows by" }).getByRole("button", { name: by }).click();
            seen[by] = (await column(1)).map((own, index) => own).join(" ");
        }
        await page.getByRole("button", { name: "Copy" }).click();
        await page.getByText("rows copied").waitFor();
        return seen;
    },

    async views(page) {
        const seen = {};
        for (const name of ["Source", "Kept", "Mappings"]) {
            await page.getByRole("tab", { name }).click();
            seen[name] = await page.locator("#view").innerText();
            if (name === "Source")
                seen.source = [
                    await page.locator(".listing .spark").count(),
                    await page.locator(".listing .py-text").allInnerTexts(),
                ];
        }
        await page.getByRole("tab", { name: "Mappings" }).press("ArrowLeft");
        assert.equal(await page.getByRole("tab", { name: "Kept" }).getAttribute("aria-selected"), "true");
        await page.locator("#view .link").first().click();
        assert.equal(await page.getByRole("tab", { name: "Source" }).getAttribute("aria-selected"), "true");
        seen.asked = await page.locator("tr.asked code").innerText();
        return seen;
    },

    /** What is live at the end, on a page that was asked for it. */
    async kept(page) {
        assert.equal(await page.getByRole("tab", { name: "Kept" }).getAttribute("aria-selected"), "true");
        const rows = await page.locator("#view tbody tr").all();
        return {
            said: await text(page, "#view .controls"),
            heads: (await page.locator("#view th").allInnerTexts()).map((one) => one.replace(/ [▾▴]$/, "")),
            rows: await Promise.all(rows.map((row) => row.locator("td").allInnerTexts())),
        };
    },

    /** From a frame to what holds its objects. */
    async holders(page) {
        const rows = () => page.locator("#view tbody tr").count();
        await page.locator(".flame canvas").focus();
        for (let depth = 0; depth < 6; depth += 1) await page.keyboard.press("ArrowDown");
        await page.keyboard.press("d");
        await page.getByRole("button", { name: "What holds it" }).click();
        assert.equal(await page.getByRole("tab", { name: "Holders" }).getAttribute("aria-selected"), "true");
        const seen = { chosen: await text(page, "#view"), some: await rows() };
        await page.getByRole("button", { name: "Show all" }).click();
        seen.all = await rows();
        await page.locator("#view .expand").first().click();
        seen.details = await text(page, "#view .inside");
        await page.locator("#view .link").first().click();
        seen.source = await page.locator("tr.asked code").innerText();
        return seen;
    },

    async accessible(page) {
        const found = [];
        const tabs = await page.getByRole("tab").allInnerTexts();
        await page.evaluate(AXE);
        for (const scheme of ["light", "dark"]) {
            await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" }); // colours do not fade
            for (const name of tabs.length ? tabs : [null]) {
                if (name) await page.getByRole("tab", { name }).click();
                await settled(page);
                const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
                for (const violation of violations)
                    found.push(
                        `${scheme} ${name}: ${violation.id}: ${violation.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`,
                    );
            }
        }
        return found;
    },

    async diff(page) {
        const seen = { head: await text(page, ".head"), moment: await text(page, "#moment"), root: await root(page) };
        const before = await drawn(page);
        await page.getByLabel("Colour by").selectOption("kind");
        assert.notEqual(await drawn(page), before);
        await page.getByRole("tab", { name: "Table" }).click();
        const rows = () =>
            page
                .locator(".table-view tbody tr")
                .evaluateAll((found) =>
                    found.map((row) => Array.from(row.querySelectorAll("td"), (cell) => cell.innerText)),
                );
        seen.columns = await page.locator(".table-view th button").allInnerTexts();
        seen.lines = await rows();
        for (const name of ["Change", "Before", "After"]) {
            await page.getByRole("columnheader", { name, exact: true }).getByRole("button").click();
            seen[name] = await rows();
        }
        await page.getByRole("button", { name: "End", exact: true }).click();
        seen.end = [await text(page, "#moment"), await rows()];
        return seen;
    },

    async whole(page) {
        return {
            title: await page.title(),
            text: await page.locator("body").innerText(),
            processes: await page.getByRole("tab", { name: "Processes" }).count(),
        };
    },

    async processes(page) {
        await page.getByRole("tab", { name: "Processes" }).click();
        const seen = { rows: await page.locator("#view tbody tr").allInnerTexts(), first: await text(page, "h1") };
        if (await page.locator("#view .link").count()) {
            await page.locator("#view .link").last().click();
            await page.waitForSelector(".flame canvas", SHOWN);
            seen.second = [await text(page, "h1"), await moment(page)];
        }
        return seen;
    },
};

/** Those that need another browser, or stand elsewhere than on a page of their own. */
const SPECIAL = {
    noscript: {
        options: { javaScriptEnabled: false },
        async act(page) {
            const box = await page.locator(".summary svg").boundingBox();
            assert.ok(box.width > 500 && box.height > 80, "the drawing is not to be seen");
            return page.locator("body").innerText();
        },
    },
    // A browser that cannot unpack the data.
    old: {
        options: {},
        before: (page) => page.addInitScript(() => delete window.DecompressionStream),
        async act(page) {
            await page.locator(".notes").waitFor(SHOWN);
            return page.locator("body").innerText();
        },
    },
    // PAGE holds an iframe whose srcdoc is the page.
    srcdoc: {
        options: {},
        async act(page) {
            const frame = page.frameLocator("iframe");
            await frame.locator(".flame canvas").waitFor(SHOWN);
            await frame.locator("#search").fill("small");
            await frame.getByRole("tab", { name: "Table" }).click();
            return {
                found: await frame.locator(".table-view tbody tr").count(),
                moment: await frame.locator("#moment b").innerText(),
            };
        },
    },
};

const browser = await launch();

/** For all but the special ones: a process for each page would cost more than most of them do there. */
let shared = null;
async function sharedPage() {
    if (!shared) {
        const page = await browser.newPage({ viewport: VIEWPORT });
        shared = { page, record: watch(page) };
    }
    const { page } = shared;
    await page.goto("about:blank");
    await page.mouse.move(0, 0);
    await page.setViewportSize(VIEWPORT);
    await page.emulateMedia({ colorScheme: null, reducedMotion: null });
    return shared;
}

async function visit(page, record, act) {
    page.setDefaultTimeout(20_000);
    await page.goto(record.url);
    const result = await act(page);
    assert.deepEqual(record.complaints, []);
    return result;
}

function seeSpecial({ options, before, act }, path) {
    return withPage(browser, path, options, async (page, record) => {
        await before?.(page);
        return visit(page, record, act);
    });
}

async function seeShared(scenario, path) {
    const { page, record } = await sharedPage();
    Object.assign(record, { complaints: [], url: urlOf(path) });
    try {
        return await visit(page, record, async () => {
            await page.waitForSelector(".bar", SHOWN);
            if (!["whole", "accessible", "processes", "kept"].includes(scenario))
                await page.waitForSelector(".flame canvas", SHOWN);
            return SCENARIOS[scenario](page);
        });
    } catch (error) {
        shared = null;
        await page.close();
        throw error;
    }
}

const see = (scenario, path) => (SPECIAL[scenario] ? seeSpecial(SPECIAL[scenario], path) : seeShared(scenario, path));

try {
    for await (const line of createInterface({ input: process.stdin })) {
        const [scenario, path] = JSON.parse(line);
        const answer = await see(scenario, path).then(
            (seen) => ({ seen }),
            (error) => ({ error: error.stack }),
        );
        console.log(JSON.stringify(answer));
    }
} finally {
    await browser.close();
}
