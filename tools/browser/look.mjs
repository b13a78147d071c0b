// Reads a scalar's chart on TensorBoard's pages in a headless Chromium, and prints the results.
//
// The only argument is JSON: addresses, runs, tag, limit_s and picture, the file for a screenshot of
// the first page, or null. Prints a line of JSON per address, read by rehearsal/proofs/browser.py.
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium, errors } from "playwright-core";

const request = JSON.parse(process.argv[2]);
const folder = join(import.meta.dirname, "node_modules", ".chromium");
const LOAD_MS = 60000;
const EVERY_MS = 200;
// Timeout for a part of the page; if the page is redrawn, it is read again.
const PART_MS = 5000;
const NOTHING = { card: false, value: null, step: null, width: 0, columns: 0 };
const none = () => Object.fromEntries(request.runs.map((run) => [run, { ...NOTHING }]));

// Counts the pixel columns with the run's color, and its mean height in the first and last one.
async function measure(page, view, color) {
  const png = (await view.screenshot()).toString("base64");
  return page.evaluate(
    async ({ png, wanted }) => {
      const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes]));
      const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
      context.drawImage(image, 0, 0);
      const { data, width, height } = context.getImageData(0, 0, image.width, image.height);
      const heights = [];
      for (let x = 0; x < width; x++) {
        const rows = [];
        for (let y = 0; y < height; y++) {
          const at = 4 * (y * width + x);
          // A line's edges are blended with the background, but its middle is not.
          if (wanted.every((value, i) => Math.abs(data[at + i] - value) <= 2)) rows.push(y);
        }
        if (rows.length) heights.push(height - rows.reduce((a, b) => a + b) / rows.length);
      }
      const [first, last] = [heights.at(0) ?? null, heights.at(-1) ?? null];
      return { width, columns: heights.length, first_height: first, last_height: last };
    },
    { png, wanted: color.match(/\d+/g).slice(0, 3).map(Number) },
  );
}

// Filters by tag, because TensorBoard opens only the first two groups of cards.
async function filter(page) {
  const field = page.locator('input[placeholder^="Filter tags"]');
  if ((await field.count()) === 0 || (await field.inputValue())) return;
  await field.fill(`^${request.tag}$`);
  // Suggestions would cover the cards.
  await field.press("Escape");
}

// Reads each run's row in the table of the tag's card, and measures the run's curve in the chart.
async function see(page) {
  await filter(page);
  const seen = none();
  const tag = page.locator(`[title="${request.tag}"]`);
  const card = page.locator("scalar-card").filter({ has: tag }).first();
  if ((await card.count()) === 0) return seen;
  for (const run of request.runs) seen[run].card = true;
  for (const row of await card.locator("tb-data-table-content-row").all()) {
    const cells = await row.locator("tb-data-table-content-cell").allInnerTexts();
    // The cells: a circle, then the run, its smoothed value, value, step and time.
    const [, name, , value, step] = cells.map((text) => text.trim());
    const run = request.runs.find((run) => name?.startsWith(`${run}/`));
    if (!run) continue;
    const color = await row.locator(".row-circle span").evaluate((s) => s.style.backgroundColor);
    Object.assign(seen[run], { value: Number(value), step: Number(step) });
    Object.assign(seen[run], await measure(page, card.locator(".series-view"), color));
  }
  return seen;
}

async function look(browser, address, picture) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.setDefaultTimeout(PART_MS);
  await page.goto(address, { timeout: LOAD_MS });
  const until = Date.now() + request.limit_s * 1000;
  let seen, first;
  do {
    await page.waitForTimeout(EVERY_MS);
    seen = await see(page).catch((error) => {
      if (error instanceof errors.TimeoutError) return none();
      throw error;
    });
    first = seen[request.runs[0]];
    // A chart's curves are drawn together; only the timeout shows that there is none.
  } while (first.columns <= first.width / 2 && Date.now() < until);
  if (picture) await page.screenshot({ path: picture, timeout: LOAD_MS });
  await page.close();
  return seen;
}

async function main() {
  const browser = await chromium.launch({
    executablePath: join(folder, "chromium"),
    // TensorBoard draws SVG without WebGL, which is slow without a GPU.
    args: ["--disable-gpu", "--disable-webgl"],
    // The package's libraries and font; no proxy, because pages are on loopback.
    env: {
      HOME: tmpdir(),
      LD_LIBRARY_PATH: join(folder, "al2023", "lib"),
      FONTCONFIG_FILE: join(folder, "fonts.conf"),
    },
    timeout: LOAD_MS,
  });
  const looks = request.addresses.map((address, i) => look(browser, address, i ? null : request.picture));
  for (const seen of await Promise.all(looks)) console.log(JSON.stringify(seen));
  await browser.close();
}

await main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
