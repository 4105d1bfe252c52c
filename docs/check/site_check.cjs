// Opens every page of the built documentation in headless Chromium, at the width of a desktop and of
// a phone, and reports what a reader would stumble over:
//
//     NODE_PATH=.../node_modules node docs/check/site_check.cjs docs/_build/html \
//         [--only REGEX] [--screenshots FOLDER]
//
// - The page does not scroll sideways. (A wide table or code block scrolls within itself.)
// - The page has one first heading, and no level of headings is left out.
// - Each code block has a copy button, and on one page the button copies the block.
// - axe finds no serious or critical violation, in the light style and in the dark style.
// - The page loads without errors and without missing files.
// - A search for "nack" has results, and the first one opens.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { parseArgs } = require("node:util");

const WIDTHS = { desktop: 1280, phone: 390 };
const TYPES = {
  ".css": "text/css",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".json": "application/json",
  ".png": "image/png",
  ".svg": "image/svg+xml",
};
const BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
// Pages that Sphinx makes: they have no text of their own.
const MADE_PAGES = new Set(["genindex.html", "py-modindex.html", "search.html"]);

function fail(text) {
  console.error(`docs-check: ${text}`);
  process.exit(2);
}

function required(name) {
  try {
    return require(name);
  } catch (error) {
    return fail(
      `the npm package ${name} is not installed (${error.code}). \`make docs-check\` installs it; ` +
        "by hand, run `npm ci` in a copy of docs/check and set NODE_PATH to its node_modules.",
    );
  }
}

function browserPath() {
  if (process.env.CHROMIUM) {
    if (fs.existsSync(process.env.CHROMIUM)) return process.env.CHROMIUM;
    fail(`CHROMIUM is ${process.env.CHROMIUM}, and there is no such file.`);
  }
  for (const folder of (process.env.PATH || "").split(path.delimiter)) {
    for (const name of BROWSERS) {
      const file = path.join(folder, name);
      if (fs.existsSync(file)) return file;
    }
  }
  return fail(
    "Chromium is missing. Install it (on Debian: `apt-get install chromium`), or set CHROMIUM to " +
      "the path of Chromium or Chrome.",
  );
}

function serve(root) {
  const server = http.createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const file = path.join(root, decodeURIComponent(pathname));
    if (!file.startsWith(root) || !fs.existsSync(file) || fs.statSync(file).isDirectory()) {
      response.writeHead(404).end();
      return;
    }
    const type = TYPES[path.extname(file)] || "application/octet-stream";
    response.writeHead(200, { "Content-Type": type });
    fs.createReadStream(file).pipe(response);
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

function pagesOf(root, folder = "") {
  return fs.readdirSync(path.join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const name = path.posix.join(folder, entry.name);
    if (entry.isDirectory()) return entry.name.startsWith("_") ? [] : pagesOf(root, name);
    return entry.name.endsWith(".html") ? [name] : [];
  });
}

// Runs in the page.
function faultsOfLayout() {
  const faults = [];
  // Only code and tables may scroll within themselves. On a phone the theme lets the whole text scroll
  // in its column, which a reader cannot tell from a page that scrolls.
  const own = "pre, .table-wrapper, .highlight, [class*=sidebar], [class*=toc]";
  const scrolls = (each) =>
    each.scrollWidth > each.clientWidth + 1 &&
    (each === document.documentElement ||
      ["auto", "scroll"].includes(getComputedStyle(each).overflowX));
  for (const each of [document.documentElement, ...document.querySelectorAll("body *")]) {
    if (each.closest(own) || !scrolls(each)) continue;
    const edge = each.getBoundingClientRect().left + each.clientWidth + 1;
    const wide = [...each.querySelectorAll("*")].find(
      (inner) => !inner.parentElement.closest(own) && inner.getBoundingClientRect().right > edge,
    );
    const text = wide ? `<${wide.localName}> ${wide.textContent.trim().slice(0, 80)}` : "unknown";
    const most = each.scrollWidth - each.clientWidth;
    faults.push(`<${each.localName} class="${each.className}"> scrolls sideways by ${most} px: ${text}`);
  }
  let last = 0;
  let first = 0;
  for (const heading of document.querySelectorAll("article :is(h1, h2, h3, h4, h5, h6)")) {
    const level = Number(heading.localName[1]);
    first += level === 1;
    if (level > last + 1) faults.push(`h${level} after h${last}: ${heading.textContent.trim()}`);
    last = level;
  }
  if (first !== 1) faults.push(`${first} first headings`);
  for (const block of document.querySelectorAll("article div.highlight")) {
    if (!block.querySelector("button.copybtn")) {
      faults.push(`no copy button: ${block.textContent.trim().slice(0, 60)}`);
    }
  }
  return faults;
}

async function faultsOfAxe(page, axeSource) {
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document));
  return violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => {
      const nodes = each.nodes.map((node) => node.target.join(" "));
      return `${each.id} (${each.impact}): ${each.help}; ${nodes.length} places, first ${nodes[0]}`;
    });
}

async function checkSearch(context, base, faults) {
  const page = await context.newPage();
  await page.goto(`${base}/index.html`);
  await page.locator("input[name=q]").first().fill("nack");
  await page.keyboard.press("Enter");
  const results = page.locator("#search-results ul.search li a");
  try {
    await results.first().waitFor();
  } catch {
    faults.push("search: no result for nack");
    return;
  }
  const count = await results.count();
  const target = await results.first().getAttribute("href");
  await page.goto(new URL(target, page.url()).href);
  const found = await page.locator("article").innerText();
  if (!/nack/i.test(found)) faults.push(`search: the first result, ${target}, has no "nack"`);
  console.log(`search for "nack": ${count} results, first ${target}`);
  await page.close();
}

async function checkCopy(context, base, faults) {
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: base });
  const page = await context.newPage();
  await page.goto(`${base}/index.html`);
  const block = page.locator("article div.highlight").first();
  await block.hover();
  await block.locator("button.copybtn").click();
  await page.waitForTimeout(300);
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  const shown = await block.locator("pre").innerText();
  if (copied.trim() !== shown.trim()) faults.push(`copy: got ${JSON.stringify(copied)}`);
  await page.close();
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { only: { type: "string", default: "" }, screenshots: { type: "string" } },
  });
  const [root] = positionals;
  if (!root || !fs.existsSync(path.join(root, "index.html"))) {
    fail(`there is no built documentation in ${root}. Run \`make docs\` first.`);
  }
  const { only, screenshots } = values;
  if (screenshots) fs.mkdirSync(screenshots, { recursive: true });
  const { chromium } = required("playwright-core");
  const axeSource = required("axe-core").source;
  // Containers and many CI machines have no user namespaces for the sandbox. The pages are ours.
  const browser = await chromium.launch({
    executablePath: browserPath(),
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const server = await serve(path.resolve(root));
  const base = `http://127.0.0.1:${server.address().port}`;
  const pages = pagesOf(root)
    .filter((name) => !MADE_PAGES.has(name) && new RegExp(only).test(name))
    .sort();
  const faults = [];
  try {
    for (const [device, width] of Object.entries(WIDTHS)) {
      const colorScheme = device === "desktop" ? "light" : "dark";
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
      for (const name of pages) {
        const page = await context.newPage();
        const found = [];
        page.on("pageerror", (error) => found.push(`error: ${error.message}`));
        page.on("response", (response) => {
          if (response.status() >= 400) found.push(`${response.status()} for ${response.url()}`);
        });
        await page.goto(`${base}/${name}`, { waitUntil: "load" });
        found.push(...(await page.evaluate(faultsOfLayout)));
        found.push(...(await faultsOfAxe(page, axeSource)));
        faults.push(...found.map((each) => `${name} at ${width} px: ${each}`));
        if (screenshots) {
          const file = `${name.replaceAll("/", "-").replace(".html", "")}-${device}.png`;
          await page.screenshot({ path: path.join(screenshots, file) });
        }
        await page.close();
      }
      context.setDefaultTimeout(15000);
      for (const check of device === "desktop" ? [checkSearch, checkCopy] : [checkSearch]) {
        try {
          await check(context, base, faults);
        } catch (error) {
          faults.push(`${check.name} at ${width} px: ${error.message.split("\n")[0]}`);
        }
      }
      await context.close();
    }
  } finally {
    await browser.close();
    server.close();
  }
  for (const each of faults) console.error(each);
  console.log(`${pages.length} pages at ${Object.values(WIDTHS).join(" and ")} px: ${faults.length} faults`);
  process.exitCode = faults.length ? 1 : 0;
}

main().catch((error) => fail(error.stack));
