// Makes the pictures of docs/page.md from a page. Usage: node pictures.mjs PAGE FOLDER
import { join } from "node:path";
import { launch, withPage } from "./chromium.mjs";

const [path, folder] = process.argv.slice(2);
const PICTURES = [
    { name: "page", width: 1440, height: 900, colorScheme: "light", libraries: "shown" },
    { name: "page-dark", width: 1440, height: 900, colorScheme: "dark", tab: "My lines", opens: true },
    { name: "page-1024", width: 1024, height: 768, colorScheme: "light" },
    { name: "page-1024-dark", width: 1024, height: 768, colorScheme: "dark" },
    { name: "page-420", width: 420, height: 800, colorScheme: "light", tab: "My lines" },
    { name: "page-420-dark", width: 420, height: 800, colorScheme: "dark", tab: "My lines" },
];

const browser = await launch();
for (const { name, width, height, colorScheme, tab, opens, libraries } of PICTURES)
    await withPage(browser, path, { viewport: { width, height }, colorScheme }, async (page, { url }) => {
        await page.goto(url);
        await page.waitForSelector(".flame canvas", { timeout: 60_000 });
        if (libraries) await page.getByLabel("Libraries").selectOption({ label: libraries });
        if (tab) await page.getByRole("tab", { name: tab }).click();
        if (opens) await page.locator("td button", { hasText: /^in / }).first().click();
        await page.waitForTimeout(300); // transitions
        await page.screenshot({ path: join(folder, `${name}.png`) });
    });
await browser.close();
