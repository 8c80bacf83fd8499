// GET /docs: the API's description as a page, for people. It reads /openapi.json, so it tells nothing else.
#pragma once

#include <string_view>

namespace attest {

inline constexpr std::string_view kDocsPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>attest: the HTTP interface</title>
<style>
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,summary{font-family:ui-monospace,monospace}
summary{cursor:pointer;padding:.3rem 0}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{border-bottom:1px solid #8884;padding:.2rem .5rem;text-align:left;vertical-align:top}
.method{display:inline-block;min-width:3.5rem;font-weight:bold}
</style></head><body>
<h1>The HTTP interface</h1><p id="about">Reading <a href="openapi.json">openapi.json</a> ...</p><main></main>
<script>
const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};
const table = (heads, rows) => {
  const row = (cells, tag) => make('tr', '', ...cells.map(c => c instanceof Node ? make(tag, '', c) : make(tag, c)));
  return make('table', '', row(heads, 'th'), ...rows.map(cells => row(cells, 'td')));
};
const shape = s => {
  if (!s) return '';
  if (s.$ref) return s.$ref.split('/').pop();
  if (s.anyOf) return s.anyOf.map(shape).join(' or ');
  if (s.enum) return s.enum.map(v => JSON.stringify(v)).join(' or ');
  if ('const' in s) return JSON.stringify(s.const);
  let words = [].concat(s.type || 'any').join(' or ');
  if (s.items) words += ' of ' + shape(s.items);
  const low = s.minimum ?? s.exclusiveMinimum;
  if (low !== undefined) words += ` in ${'minimum' in s ? '[' : '('}${low}, ${s.maximum}]`;
  if (s.maxItems) words += `, at most ${s.maxItems}`;
  return words;
};
const fields = (api, schema) => {
  while (schema && schema.$ref) schema = api.components.schemas[schema.$ref.split('/').pop()];
  if (!schema) return [];
  if (schema.anyOf) return schema.anyOf.flatMap(s => fields(api, s));
  const rows = Object.entries(schema.properties || {}).map(([name, s]) =>
    [make('code', name + ((schema.required || []).includes(name) ? ' *' : '')), shape(s), s.description || '']);
  return rows.length ? [table(['field', 'value', 'meaning'], rows)] : [];
};
fetch('openapi.json').then(r => r.json()).then(api => {
  document.getElementById('about').textContent = `${api.info.title} ${api.info.version}. ${api.info.description}`;
  const main = document.querySelector('main');
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const summary = make('summary', '', make('span', method.toUpperCase() + ' '), path + '  ',
                           make('small', operation.summary));
      summary.firstChild.className = 'method';
      const body = operation.requestBody?.content['application/json'].schema;
      const answers = Object.entries(operation.responses).map(([status, answer]) => [status, answer.description,
        Object.entries(answer.content || {}).map(([media, c]) => `${media}: ${shape(c.schema)}`).join('; ')]);
      main.append(make('details', '', summary, ...fields(api, body), table(['status', 'when', 'body'], answers)));
    }
  }
}).catch(error => { document.getElementById('about').textContent = 'openapi.json cannot be read: ' + error; });
</script></body></html>
)html";

}  // namespace attest
