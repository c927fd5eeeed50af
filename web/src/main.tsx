import { render } from "preact";
import { App } from "./app";
import { follow } from "./catalog";
import { followMachine } from "./models/machine";

render(<App />, document.getElementById("app")!);
void follow();
void followMachine();
