// The form for the settings of answers.

import { AreaField, ChoiceField, NumberFields, numberProblem } from "../fields";
import { Presets } from "./presets";
import { change, NUMBERS, schemaProblem, settings, toolsProblem, type NumberName, type Settings } from "./settings";

const EFFORTS: [string, string][] = [["", "Default"], ["none", "None"], ["minimal", "Minimal"], ["low", "Low"], ["medium", "Medium"], ["high", "High"]];
const CHOICES: [string, string][] = [["auto", "Auto"], ["required", "Required"], ["none", "None"]];
const TOOL_EXAMPLE = '[{"name": "get_weather", "description": "The weather in a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';
const SCHEMA_EXAMPLE = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}';

export function SettingsPanel() {
  const form = settings.value;
  const setNumber = (name: NumberName, text: string) => change({ numbers: { ...form.numbers, [name]: text } });
  return (
    <div class="settings">
      <Presets />
      <AreaField label="System prompt" value={form.system} onText={(system) => change({ system })} placeholder="Instructions for the whole conversation" />
      <NumberFields fields={(Object.keys(NUMBERS) as NumberName[]).map((name) => ({
        label: NUMBERS[name].label, placeholder: NUMBERS[name].usual, value: form.numbers[name],
        problem: numberProblem(form.numbers[name], NUMBERS[name]), onText: (text) => setNumber(name, text),
      }))} />
      <ChoiceField label="Reasoning effort" value={form.effort} choices={EFFORTS} onText={(effort) => change({ effort })} />
      <AreaField label="Stop sequences (one per line)" rows={2} value={form.stop} onText={(stop) => change({ stop })} />
      <AreaField label="Tools" code value={form.tools} onText={(tools) => change({ tools })} placeholder={TOOL_EXAMPLE} problem={toolsProblem(form.tools)}
        hint="JSON in OpenAI's format. The chat shows each tool call, and you enter its result." />
      <ChoiceField label="Tool choice" value={form.toolChoice} choices={CHOICES} onText={(choice) => change({ toolChoice: choice as Settings["toolChoice"] })} />
      <AreaField label="JSON schema of the answer" code value={form.schema} onText={(schema) => change({ schema })} placeholder={SCHEMA_EXAMPLE} problem={schemaProblem(form.schema)} />
    </div>
  );
}
