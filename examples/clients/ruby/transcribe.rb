# frozen_string_literal: true

# Transcribes an audio file over gRPC, while the audio is being sent.
#
#     make transcribe FILE=speech.wav     # or: ruby -Ibuild transcribe.rb FILE [address [model]]
#
# The files below build/allm are generated from the .proto files by `make`. docs/grpc-clients.md explains it.

require "grpc"
require "allm/audio/v1/transcription_service_services_pb"

Audio = Allm::Audio::V1

SECONDS = 600 # a deadline for the call: without one, it may wait forever
PIECE_BYTES = 64 * 1024

# Yields the configuration, then the audio as it arrives. For a microphone, `raw` describes the format of the samples.
# The end of the enumerator ends the sound, not the answers.
def requests(file, model)
  Enumerator.new do |messages|
    messages << Audio::StreamTranscribeRequest.new(config: { model: model })
    while (piece = file.read(PIECE_BYTES))
      messages << Audio::StreamTranscribeRequest.new(audio: piece)
    end
  end
end

# Prints the text as soon as it is known.
def transcribe(transcriptions, file, model)
  transcriptions.stream_transcribe(requests(file, model)).each do |reply|
    # A reply holds exactly one event; transcription_service.proto lists them, in their order.
    case reply.event
    when :partial # of a phrase that is not over: the next partial or segment takes its place
      puts "...#{reply.partial.text}"
    when :segment
      puts format("%.2f-%.2f%s", reply.segment.start, reply.segment.end, reply.segment.text)
      $stdout.flush
    when :finished
      puts format("(%.1f s, %d tokens)", reply.finished.duration, reply.finished.tokens)
    end
  end
end

abort "usage: transcribe.rb FILE [address [model]]" if ARGV.empty?
path, address, model = ARGV
address ||= "127.0.0.1:8080"
begin
  transcriptions = Audio::TranscriptionService::Stub.new(address, :this_channel_is_insecure, timeout: SECONDS)
  File.open(path, "rb") { |file| transcribe(transcriptions, file, model || "whisper-tiny.en") }
rescue GRPC::BadStatus => e
  abort "#{e.class}: #{e.details}"
rescue SystemCallError => e
  abort e.message
end
