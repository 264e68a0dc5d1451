"""The two pages for people: one to try a policy, one with the routes. Both load nothing else."""

from __future__ import annotations

_STYLE = """
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
input, textarea, select, button { font: inherit; width: 100%; box-sizing: border-box }
textarea, pre, code { font: 14px/1.4 ui-monospace, monospace }
pre { background: #f4f4f4; padding: .8rem; overflow: auto }
label { display: block; margin: .8rem 0 .2rem } button { margin: 1rem 0; padding: .4rem }
summary { cursor: pointer; margin: .4rem 0 }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #eee }
  pre { background: #262626 } a { color: #8bf } }
</style>
"""

_SCRIPT = """
const $ = id => document.getElementById(id);
const ask = async (path, body) => {
  const headers = {};
  if ($("token").value) headers.Authorization = "Bearer " + $("token").value;
  if (body) headers["Content-Type"] = "application/json";
  const reply = await fetch(path, {method: body ? "POST" : "GET", headers, body});
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error.message);
  return found;
};
"""

START_PAGE = f"""<!doctype html><html lang="en"><title>rl-service</title>{_STYLE}
<h1>rl-service</h1>
<p>Send an observation, get an action. <a href="docs">All routes</a>.</p>
<label for="token">Token, if the service asks for one</label><input id="token" type="password">
<label for="policy">Policy</label><select id="policy"></select>
<label for="body">Request</label><textarea id="body" rows="5"></textarea>
<button id="act">Act</button><pre id="reply" aria-live="polite"></pre>
<script>{_SCRIPT}
const show = value => $("reply").textContent =
  typeof value === "string" ? value : JSON.stringify(value, null, 1);
let policies = {{}};
const choose = () => {{
  const zeros = shape => shape.length === 0 ? 0
    : Array.from({{length: shape[0]}}, () => zeros(shape.slice(1)));
  const policy = policies[$("policy").value];
  const observation = zeros(policy?.observation_space.shape ?? []);
  if (policy) $("body").value = JSON.stringify({{observation}});
}};
const load = async () => {{
  try {{
    const found = (await ask("v1/policies")).policies;
    policies = Object.fromEntries(found.map(policy => [policy.policy, policy]));
    $("policy").replaceChildren(...found.map(policy => new Option(policy.policy)));
    choose(); show(found);
  }} catch (error) {{ show(error.message); }}
}};
$("policy").onchange = choose; $("token").onchange = load;
$("act").onclick = async () => {{
  const path = "v1/policies/" + encodeURIComponent($("policy").value) + "/act";
  try {{ show(await ask(path, $("body").value)); }} catch (error) {{ show(error.message); }}
}};
load();
</script></html>
"""

DOCS_PAGE = f"""<!doctype html><html lang="en"><title>rl-service: routes</title>{_STYLE}
<h1>Routes</h1>
<p>The OpenAPI document is at <a href="openapi.json">openapi.json</a>.</p>
<label for="token">Token, if the service asks for one</label><input id="token" type="password">
<div id="routes" aria-live="polite"></div>
<script>{_SCRIPT}
const element = (name, text) => Object.assign(document.createElement(name), {{textContent: text}});
const part = (title, value) => value === undefined ? [] :
  [element("p", title), element("pre", JSON.stringify(value, null, 1))];
const load = async () => {{
  try {{
    const found = await ask("openapi.json"), parts = [];
    for (const [path, methods] of Object.entries(found.paths))
      for (const [method, route] of Object.entries(methods)) {{
        const box = document.createElement("details");
        const body = route.requestBody?.content["application/json"];
        box.append(element("summary", method.toUpperCase() + " " + path + " – " + route.summary),
          ...part("Example", body?.example), ...part("Body", body?.schema),
          ...part("Reply", route.responses["200"].content["application/json"]?.schema));
        parts.push(box);
      }}
    $("routes").replaceChildren(...parts);
  }} catch (error) {{ $("routes").textContent = error.message; }}
}};
$("token").onchange = load; load();
</script></html>
"""
