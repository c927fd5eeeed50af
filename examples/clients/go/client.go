// A gRPC client of allm: lists models, streams an answer, lets the model call a tool, cancels, reads an error.
//
//	make run          # or: build/client [address [model]]
//
// The packages below github.com/allm/allm/gen/go are generated from the .proto files by `make`. docs/grpc-clients.md explains
// each step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"sort"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	modelsv1 "github.com/allm/allm/gen/go/allm/models/v1"
	textv1 "github.com/allm/allm/gen/go/allm/text/v1"
)

// A deadline for every call: without one, a call may wait forever.
const patience = 2 * time.Minute

// weather holds the arguments of the tool.
type weather struct {
	City string `json:"city"`
}

// getWeather is the tool itself: the model only requests a call, and this program runs it.
func getWeather(arguments weather) string {
	return "22 degrees in " + arguments.City
}

// getWeatherTool is the declaration of the tool, which the model reads.
var getWeatherTool = &textv1.Tool{
	Name:        "get_weather",
	Description: "Tells the weather of a city.",
	Strict:      true, // the model cannot write arguments that break this schema
	ParametersJson: `{
		"type": "object",
		"properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
		"required": ["city"],
		"additionalProperties": false
	}`,
}

// pointer returns the value of an optional field: nil means unset, which differs from zero.
func pointer[T any](value T) *T {
	return &value
}

// user returns a message of the user.
func user(text string) *textv1.Item {
	content := []*textv1.ContentPart{{Part: &textv1.ContentPart_Text{Text: text}}}
	return &textv1.Item{Kind: &textv1.Item_Message{
		Message: &textv1.MessageItem{Role: textv1.ChatRole_CHAT_ROLE_USER, Content: content},
	}}
}

// client holds the stubs that the steps share.
type client struct {
	models    modelsv1.ModelServiceClient
	responses textv1.ResponseServiceClient
	model     string
}

// listModels calls an RPC with one answer.
func (c *client) listModels(ctx context.Context) error {
	reply, err := c.models.ListModels(ctx, &modelsv1.ListModelsRequest{})
	if err != nil {
		return err
	}
	for _, model := range reply.Models {
		fmt.Printf("%s: %s\n", model.Id, model.State)
	}
	return nil
}

// ask streams an answer to a question.
func (c *client) ask(ctx context.Context) error {
	return c.stream(ctx, &textv1.StreamResponseRequest{
		Model: c.model,
		Input: []*textv1.Item{user("What is the capital of France?")},
		Settings: &textv1.ResponseSettings{
			Sampling: &textv1.SamplingParameters{Temperature: pointer(float32(0)), MaxTokens: pointer(int32(100))},
		},
	})
}

// stream prints an answer while the model writes it.
func (c *client) stream(ctx context.Context, request *textv1.StreamResponseRequest) error {
	stream, err := c.responses.StreamResponse(ctx, request)
	if err != nil {
		return err
	}
	pieces := 0
	var response *textv1.Response
	for {
		reply, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		// A reply holds exactly one event; response_service.proto lists them, in their order.
		switch event := reply.Event.(type) {
		case *textv1.StreamResponseResponse_TextDelta:
			pieces++
			fmt.Print(event.TextDelta.Text)
		case *textv1.StreamResponseResponse_Completed:
			response = event.Completed
		case *textv1.StreamResponseResponse_Incomplete:
			response = event.Incomplete
		case *textv1.StreamResponseResponse_Failed:
			response = event.Failed
		}
	}
	fmt.Printf("\n(%d pieces, %s)\n", pieces, response.GetStatus())
	return nil
}

// callTool lets the model call a tool, runs the tool, and lets the model answer with its result.
func (c *client) callTool(ctx context.Context) error {
	settings := &textv1.ResponseSettings{
		Sampling:          &textv1.SamplingParameters{Temperature: pointer(float32(0)), MaxTokens: pointer(int32(100))},
		Tools:             []*textv1.Tool{getWeatherTool},
		ParallelToolCalls: pointer(false),
		// By default, the model decides whether to call a tool. Very small models decide badly, so this requires the call.
		ToolChoice: &textv1.ToolChoice{Mode: textv1.ToolChoice_MODE_REQUIRED, Names: []string{"get_weather"}},
	}
	asked, err := c.responses.CreateResponse(ctx, &textv1.CreateResponseRequest{
		Model:    c.model,
		Input:    []*textv1.Item{user("What is the weather in Paris?")},
		Settings: settings,
	})
	if err != nil {
		return err
	}

	var results []*textv1.Item
	for _, item := range asked.Response.Output {
		call := item.GetFunctionCall()
		if call == nil {
			continue
		}
		var arguments weather
		if err := json.Unmarshal([]byte(call.ArgumentsJson), &arguments); err != nil {
			return err
		}
		result := getWeather(arguments)
		fmt.Printf("%s(%s) = %s\n", call.Name, call.ArgumentsJson, result)
		results = append(results, &textv1.Item{Kind: &textv1.Item_FunctionCallOutput{
			FunctionCallOutput: &textv1.FunctionCallOutputItem{CallId: call.CallId, Output: result},
		}})
	}

	// The server has stored the conversation so far; the response's id refers to it.
	settings.PreviousResponseId = asked.Response.Id
	settings.ToolChoice = &textv1.ToolChoice{Mode: textv1.ToolChoice_MODE_NONE}
	return c.stream(ctx, &textv1.StreamResponseRequest{Model: c.model, Input: results, Settings: settings})
}

// cancel cancels in the middle of a long answer; the model stops immediately.
func (c *client) cancel(ctx context.Context) error {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	stream, err := c.responses.StreamResponse(ctx, &textv1.StreamResponseRequest{
		Model: c.model,
		Input: []*textv1.Item{user("Count to a thousand.")},
		Settings: &textv1.ResponseSettings{
			Sampling: &textv1.SamplingParameters{MaxTokens: pointer(int32(4000)), IgnoreEos: true}, // for a long answer
		},
	})
	if err != nil {
		return err
	}
	pieces := 0
	for {
		reply, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			fmt.Printf("%s after %d pieces\n", status.Code(err), pieces)
			return nil
		}
		if reply.GetTextDelta() != nil {
			pieces++
		}
		if pieces == 3 {
			hangUp()
		}
	}
}

// fail requests a model that does not exist. The error's ErrorInfo is for programs.
func (c *client) fail(ctx context.Context) error {
	_, err := c.responses.CreateResponse(ctx, &textv1.CreateResponseRequest{
		Model: "no/such-model",
		Input: []*textv1.Item{user("Hello?")},
	})
	fmt.Printf("%s: %s\n", status.Code(err), status.Convert(err).Message())
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		fmt.Printf("reason: %s\ndomain: %s\n", info.Reason, info.Domain)
		keys := make([]string, 0, len(info.Metadata))
		for key := range info.Metadata {
			keys = append(keys, key)
		}
		sort.Strings(keys)
		for _, key := range keys {
			fmt.Printf("%s: %s\n", key, info.Metadata[key])
		}
	}
	return nil
}

func main() {
	address, model := "127.0.0.1:8080", "smollm2-135m-instruct"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		model = os.Args[2]
	}

	// A connection carries any number of concurrent calls: create one and share it. (Newer releases of gRPC call this
	// NewClient and insecure.NewCredentials, and still accept the old names.)
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	c := &client{modelsv1.NewModelServiceClient(connection), textv1.NewResponseServiceClient(connection), model}

	steps := []struct {
		name string
		run  func(context.Context) error
	}{{"models", c.listModels}, {"stream", c.ask}, {"tool", c.callTool}, {"cancel", c.cancel}, {"error", c.fail}}
	for _, step := range steps {
		fmt.Println("==", step.name)
		ctx, done := context.WithTimeout(context.Background(), patience)
		err := step.run(ctx)
		done()
		if err != nil {
			log.Fatal(err)
		}
	}
}
