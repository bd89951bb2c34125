// How long a page takes to appear, to zoom and to search: milliseconds, as JSON. Usage: node measure.mjs PAGE [shown], the latter for no more than how
// long it takes to appear
import { launch, timed, withPage } from "./chromium.mjs";

const path = process.argv[2];
const browser = await launch();
const figures = await withPage(browser, path, { bypassCSP: true }, async (page, { url }) => {
    await page.goto(url);
    await page.waitForSelector(".flame canvas", { timeout: 60_000 });
    const shown = await page.evaluate(
        () =>
            new Promise((resolve) =>
                requestAnimationFrame(() =>
                    setTimeout(() => resolve(performance.getEntriesByName("hiwater-shown")[0].startTime), 0),
                ),
            ),
    );
    if (process.argv[3] === "shown") return { shown };
    const click = ({ x, y }) => {
        const canvas = document.querySelector(".flame canvas");
        const bounds = canvas.getBoundingClientRect();
        canvas.dispatchEvent(
            new MouseEvent("click", {
                bubbles: true,
                clientX: bounds.left + x * bounds.width,
                clientY: bounds.top + y,
            }),
        );
    };
    const type = (text) => {
        const box = document.querySelector("#search");
        box.value = text;
        box.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const press = (label) =>
        [...document.querySelectorAll("button")].find((button) => button.textContent === label).click();
    const zoom = [];
    for (const y of [75, 50, 120, 10]) zoom.push(await timed(page, click, { x: 0.3, y }));
    const search = [];
    for (const text of ["function_3", "module_7", "/function_1.$/", ""]) search.push(await timed(page, type, text));
    const end = await timed(page, press, "End");
    const inverted = await timed(page, press, "Invert");
    return { shown, zoom: Math.max(...zoom), search: Math.max(...search), end, inverted };
});
await browser.close();
console.log(JSON.stringify(figures));
