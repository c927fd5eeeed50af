// Transcribes an audio file over gRPC, while the audio is being sent.
//
//     make transcribe FILE=speech.wav     # or: build/transcribe FILE [address [model]]
//
// The headers below allm/ are generated from the .proto files by `make`. docs/grpc-clients.md explains it.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "allm/audio/v1/transcription_service.grpc.pb.h"

namespace audio = allm::audio::v1;

namespace {

constexpr std::size_t kPieceBytes = 64 * 1024;

using Stream = grpc::ClientReaderWriter<audio::StreamTranscribeRequest, audio::StreamTranscribeResponse>;

// Sends the configuration, then the audio as it arrives. For a microphone, `raw` describes the format of the samples.
// WritesDone ends the sound, not the answers.
void send(Stream* stream, std::istream* sound, const std::string& model) {
  audio::StreamTranscribeRequest request;
  request.mutable_config()->set_model(model);
  bool taken = stream->Write(request);
  std::string piece(kPieceBytes, '\0');
  // If a write fails, the server has ended the call. Finish returns the reason.
  while (taken && (sound->read(piece.data(), piece.size()), sound->gcount() > 0)) {
    request.set_audio(piece.data(), sound->gcount());
    taken = stream->Write(request);
  }
  stream->WritesDone();
}

// Prints the text as soon as it is known.
void receive(Stream* stream) {
  audio::StreamTranscribeResponse reply;
  while (stream->Read(&reply)) {
    // A reply holds exactly one event; transcription_service.proto lists them, in their order.
    switch (reply.event_case()) {
      case audio::StreamTranscribeResponse::kPartial:
        // The text of an unfinished phrase: the next partial or segment replaces it.
        std::printf("...%s\n", reply.partial().text().c_str());
        break;
      case audio::StreamTranscribeResponse::kSegment:
        std::printf("%.2f-%.2f%s\n", reply.segment().start(), reply.segment().end(), reply.segment().text().c_str());
        std::fflush(stdout);
        break;
      case audio::StreamTranscribeResponse::kFinished:
        std::printf("(%.1f s, %d tokens)\n", reply.finished().duration(), reply.finished().tokens());
        break;
      default:
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: transcribe FILE [address [model]]\n";
    return 1;
  }
  std::ifstream file(argv[1], std::ios::binary);
  if (!file) {
    std::cerr << argv[1] << " cannot be read\n";
    return 1;
  }
  const std::string address = argc > 2 ? argv[2] : "127.0.0.1:8080";
  const std::string model = argc > 3 ? argv[3] : "whisper-tiny.en";
  const auto stub =
      audio::TranscriptionService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));

  grpc::ClientContext context;
  // A deadline: without one, the call may wait forever.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  const auto stream = stub->StreamTranscribe(&context);
  std::thread sending(send, stream.get(), &file, model);
  receive(stream.get());
  sending.join();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    std::cerr << status.error_message() << "\n";
    return 1;
  }
}
