// Transcribes an audio file over gRPC, while the audio is being sent.
//
//	make transcribe FILE=speech.wav     # or: build/transcribe FILE [address [model]]
//
// The package below github.com/allm/allm/gen/go is generated from the .proto files by `make`. docs/grpc-clients.md explains it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"

	audiov1 "github.com/allm/allm/gen/go/allm/audio/v1"
)

// A deadline for the call: without one, it may wait forever.
const patience = 10 * time.Minute

const pieceBytes = 64 * 1024

// send sends the configuration, then the audio as it arrives. For a microphone, Raw describes the format of the samples.
// CloseSend ends the sound, not the answers.
func send(stream audiov1.TranscriptionService_StreamTranscribeClient, sound io.Reader, model string) error {
	config := &audiov1.TranscriptionConfig{Model: model}
	first := &audiov1.StreamTranscribeRequest{Payload: &audiov1.StreamTranscribeRequest_Config{Config: config}}
	// io.EOF means that the server has ended the call. Recv returns the reason.
	if err := stream.Send(first); err != nil {
		return err
	}
	piece := make([]byte, pieceBytes)
	for {
		size, err := sound.Read(piece)
		if err == io.EOF {
			return stream.CloseSend()
		}
		if err != nil {
			return err
		}
		audio := &audiov1.StreamTranscribeRequest_Audio{Audio: piece[:size]}
		if err := stream.Send(&audiov1.StreamTranscribeRequest{Payload: audio}); err != nil {
			return err
		}
	}
}

// receive prints the text as soon as it is known.
func receive(stream audiov1.TranscriptionService_StreamTranscribeClient) error {
	for {
		reply, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		// A reply holds exactly one event; transcription_service.proto lists them, in their order.
		switch event := reply.Event.(type) {
		case *audiov1.StreamTranscribeResponse_Partial:
			// The text of an unfinished phrase: the next partial or segment replaces it.
			fmt.Printf("...%s\n", event.Partial.Text)
		case *audiov1.StreamTranscribeResponse_Segment:
			fmt.Printf("%.2f-%.2f%s\n", event.Segment.Start, event.Segment.End, event.Segment.Text)
		case *audiov1.StreamTranscribeResponse_Finished:
			fmt.Printf("(%.1f s, %d tokens)\n", event.Finished.Duration, event.Finished.Tokens)
		}
	}
}

func transcribe(path, address, model string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	// (Newer releases of gRPC call this NewClient and insecure.NewCredentials, and still accept the old names.)
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		return err
	}
	defer connection.Close()

	deadline, done := context.WithTimeout(context.Background(), patience)
	defer done()
	stream, err := audiov1.NewTranscriptionServiceClient(connection).StreamTranscribe(deadline)
	if err != nil {
		return err
	}
	go func() {
		if err := send(stream, file, model); err != nil && err != io.EOF {
			log.Print(err)
			done() // a file that cannot be read ends the call too
		}
	}()
	return receive(stream)
}

func main() {
	arguments := []string{"", "127.0.0.1:8080", "whisper-tiny.en"}
	if copy(arguments, os.Args[1:]) == 0 {
		log.Fatal("usage: transcribe FILE [address [model]]")
	}
	if err := transcribe(arguments[0], arguments[1], arguments[2]); err != nil {
		log.Fatal(err)
	}
}
