// Drives the page of `tollgate serve` in Chromium, as a first user does, and takes screenshots.
//
//   node page.mjs SETUP_URL AGENT_TOKEN FOLDER
//
// Needs the package `playwright-core` and a Chromium (TOLLGATE_TEST_PLAYWRIGHT and CHROMIUM name them). Prints one line a
// flow, and ends with 1 at the first that fails.

import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(import.meta.url);
const { chromium } = require(process.env.TOLLGATE_TEST_PLAYWRIGHT ?? "playwright-core");
const [setup, token, folder] = process.argv.slice(2);
const base = new URL(setup).origin;
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";

const HOSTILE = "<img src=x onerror=document.title='owned'>";

async function send(pathname, secret, body, headers = {}, method = "POST") {
  const answer = await fetch(base + pathname, {
    method, body, headers: { Authorization: `Bearer ${secret}`, ...headers },
  });
  if (!answer.ok) throw new Error(`${pathname}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

function alert(hours, rule, priority, fields) {
  const time = new Date(Date.now() - hours * 3600e3).toISOString();
  const output = `${rule}: ${fields["fd.name"] ?? fields["proc.cmdline"]} by ${fields["proc.cmdline"]}`;
  return JSON.stringify({ time, rule, priority, output, hostname: "claimed", source: "syscall",
    tags: ["filesystem", "mitre_credential_access"], output_fields: fields });
}

function process_of(name, file) {
  return { "proc.name": name, "proc.pid": 4711, "proc.cmdline": `${name} ${file}`, "proc.exepath": `/usr/bin/${name}`,
    "proc.pname": "bash", "proc.ppid": 4700, "proc.aname[2]": "sshd", "proc.apid[2]": 900, "proc.aname[3]": "systemd",
    "proc.apid[3]": 1, "fd.name": file, "evt.type": "openat", "user.name": "deploy", "user.uid": 1000,
    "container.id": "3f9a1bde77c0", "container.image.repository": "registry.example/shop/web",
    "k8s.pod.name": "web-6c4f9d7b5-x2x9q", "k8s.ns.name": "shop" };
}

async function fill() {
  const rules = [
    ["Read sensitive file untrusted", "Warning", process_of("cat", "/etc/shadow")],
    ["Terminal shell in container", "Notice", process_of("bash", "/dev/pts/0")],
    ["Write below binary dir", "Error", process_of("dpkg", "/usr/bin/helper")],
    ["Run shell untrusted", "Debug", process_of("sh", "/bin/sh")],
    ["Drop and execute new binary in container", "Critical", process_of("xmrig", "/tmp/.x/xmrig")],
    ["Policy violation", "Warning", { ...process_of("mount", "/mnt"), "policy.rule": "disallow-mount" }],
    ["Contact K8S API server from container", "Notice", process_of("curl", "10.0.0.7:41022->10.96.0.1:443")],
  ];
  for (const [at, host] of ["web-1", "web-2", "db-1"].entries()) {
    const { secret } = await send("/api/v1/agents", token, JSON.stringify({ host }));
    const inventory = { host, kernel: "6.8.0-48-generic", architecture: "x86_64", version: "0.1.0",
      engine: at === 2 ? "notify" : "ebpf", rules: "sha256:9f2c41d07aa3b1", rules_enabled: 94, policy: at === 1 ? null : {
        name: "web-hardening", digest: `sha256:4f1d0c77a2b${at}`, audits: at === 2,
        enforcers: { Landlock: "partially enforced", Seccomp: "fully enforced", BPF: "not enforced" },
        reasons: { Landlock: "12 rules; 1 of 4 policy rules only partially", BPF: "the kernel was built without BTF" },
        gaps: ["Landlock enforces `disallow-write-core-pattern` only partially. Gaps: links that exist before the start"] },
      rule_times: { events: 812000, nanoseconds: 96000000, rules: rules.slice(0, 4).map(([rule], n) => (
        { rule, evaluations: 64000 >> n, nanoseconds: 48000000 >> n })) },
      counters: { events: 812000, drops: 0, violations: 3 }, spool: { pending: at * 40, oldest_seconds: at ? 130 : null } };
    await send("/api/v1/inventory", secret, JSON.stringify(inventory), {}, "PUT");
    const lines = [];
    for (let hour = 0; hour < 40; hour++) {
      for (const [n, [rule, priority, fields]] of rules.entries()) {
        const count = (hour * 7 + n * 5 + at * 3) % (n === 4 ? 17 : 9);
        for (let i = 0; i < (n === 4 ? Number(count === 3) : count); i++) {
          lines.push(alert(hour + i / 20, rule, priority, fields));
        }
      }
    }
    lines.push('{"loss":"dropped_events","count":1280,"detail":"ring buffer of processor 3 was full"}');
    if (at === 2) lines.push('{"loss":"unwatched","count":42,"detail":"the agent was restarted"}');
    await send("/api/v1/batches", secret, lines.join("\n"), { "Tollgate-Sequence": "1" });
  }
  await send("/", token, alert(0, `Named by an attacker ${HOSTILE}`, "Alert", process_of(HOSTILE, `/tmp/${HOSTILE}`)));
}

function check(condition, what) {
  if (!condition) throw new Error(what);
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const problems = [];

async function context(options) {
  const made = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1280, height: 900 }, ...options });
  made.on("page", (page) => {
    page.on("pageerror", (error) => problems.push(`script: ${error.message}`));
    page.on("console", (line) => {
      if (/Content Security Policy|Refused/.test(line.text())) problems.push(line.text());
    });
  });
  return made;
}

async function shot(page, name) {
  if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true });
}

async function wide(page) {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

const light = await context({ colorScheme: "light" });
const page = await light.newPage();

async function flow(name, steps) {
  await steps();
  console.log(`ok ${name}`);
}

try {
  await flow("the first link makes an account and logs in", async () => {
    await page.goto(setup);
    await shot(page, "setup-light");
    await page.fill("[name=name]", "ann");
    await page.fill("[name=password]", "correct horse battery");
    await page.fill("[name=again]", "correct horse battery");
    await page.click("button[type=submit]");
    check(await page.textContent("h1") === "Overview", "the overview follows");
    await shot(page, "empty-light");
  });
  await flow("the overview shows alerts and losses on one axis", async () => {
    await fill();
    await page.goto(base + "/");
    check(await page.locator("svg.bars rect.f-critical").count() > 0, "severe alerts are drawn");
    check(await page.locator("svg.lane rect.f-loss").count() > 0, "losses are drawn");
    await page.click("text=7 days");
    check(page.url().includes("range=7d"), "the range is in the address");
  });
  await flow("a filter is in the address, and text of attackers is text", async () => {
    await page.goto(base + "/alerts");
    await page.selectOption("[name=severity]", "Alert");
    await page.click("button:has-text('Filter')");
    check(page.url().includes("severity=Alert"), "the filter is in the address");
    check(await page.locator("tbody tr").count() === 1, "one group is left");
    check((await page.textContent("tbody")).includes("<img"), "the name is shown as it is");
    await page.goto(base + "/alerts?q=shadow&view=each");
    check((await page.locator("tbody tr").count()) > 10, "words are found");
  });
  await flow("a group is assigned, commented, muted and acknowledged", async () => {
    await page.goto(base + "/alerts");
    await page.click("a:has-text('Read sensitive file untrusted')");
    await page.fill("[name=to]", "bob");
    await page.click("button:has-text('Assign')");
    await page.fill("[name=text]", "The backup reads it.\nSee the runbook.");
    await page.click("button:has-text('Comment')");
    await page.fill("[name=note]", "backup");
    await page.click("button:text-is('Acknowledge')");
    check((await page.textContent("main")).includes("Acknowledged by ann"), "it is acknowledged");
    await shot(page, "group-light");
    await page.goto(base + "/alerts");
    check(!(await page.textContent("tbody")).includes("Read sensitive"), "it is hidden");
  });
  await flow("one alert has its fields and its process tree", async () => {
    await page.goto(base + "/alerts?rule=Drop+and+execute+new+binary+in+container&view=each");
    await page.click("tbody a");
    check((await page.textContent(".clauses, .panel:has(h2:text-is('Why each clause matched'))")).length > 0,
      "the clauses of its rule are told, or why not");
    check((await page.textContent(".tree")).includes("sshd"), "ancestors are drawn");
    await page.click("button:has-text('Propose an exception')");
    check(await page.locator("pre, .note").count() > 0, "it is proposed, or said why not");
    await shot(page, "exception-light");
  });
  await flow("the live page gets what arrives", async () => {
    await page.goto(base + "/live");
    await page.waitForSelector(".state.on");
    await send("/", token, alert(0, "Arrives just now", "Error", process_of("nc", "/tmp/sock")));
    await page.waitForSelector("#live a:has-text('Arrives just now')");
  });
  await flow("every page is drawn in light, dark and on a phone, and none is wider than it", async () => {
    const pages = [["overview", "/"], ["week", "/?range=7d"], ["alerts", "/alerts"], ["each", "/alerts?view=each"],
      ["live", "/live"], ["violations", "/violations"], ["policies", "/policies"], ["rules", "/rules"],
      ["fleet", "/fleet"], ["users", "/users"], ["nothing", "/alerts?q=zzzz"]];
    await page.goto(base + "/alerts?severity=Critical&view=each");
    pages.push(["alert", new URL(await page.getAttribute("tbody a", "href"), base).pathname]);
    const state = await light.storageState();
    for (const [look, options] of [["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }],
      ["phone", { colorScheme: "light", viewport: { width: 390, height: 844 }, isMobile: true }]]) {
      const other = await context({ ...options, storageState: state });
      const tab = await other.newPage();
      for (const [name, where] of pages) {
        await tab.goto(base + where);
        check(await tab.title() !== "owned", "no text becomes a script");
        check(await wide(tab) <= 0, `${name} is wider than the ${look} window`);
        await shot(tab, `${name}-${look}`);
      }
      await other.close();
    }
  });
  await flow("the keyboard leads to the content and a logout ends the session", async () => {
    await page.goto(base + "/");
    await page.keyboard.press("Tab");
    check(await page.evaluate(() => document.activeElement.className) === "skip", "the first stop skips the bar");
    await page.click("button:has-text('Log out')");
    await shot(page, "login-light");
    await page.goto(base + "/alerts");
    check(page.url().includes("/login"), "it asks who it is");
  });
  check(problems.length === 0, problems.join("; "));
} catch (error) {
  console.log(`FAILED ${error.stack}`);
  if (folder) await page.screenshot({ path: path.join(folder, "failed.png") });
  process.exitCode = 1;
} finally {
  await browser.close();
}
