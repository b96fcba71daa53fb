// Rows of the family channel: what a connection between two processes can do to its messages.
#pragma once

#include <array>

#include "faults/rows_texts.h"

namespace tpsync::faults::rows {

inline constexpr std::array kReplyFields = {
    Argument{kField, "request_id|command", true, "which field of the reply's envelope is another"}};
inline constexpr std::array kRequestFields = {
    Argument{kField,
             "tp_world_size|fingerprint|device_uuids|chunk_tensor_counts|buffer_bytes|"
             "publication_id|finished_version",
             true,
             "which field is another: of start, or (the last two) of finish. device_uuids are in "
             "another order"}};

// A message is distorted as a whole, at the first write of its frame.
constexpr FaultKind message_row(std::string_view name, Severity severity, std::string_view summary,
                                std::string_view effect, std::string_view counterpart) {
  FaultKind kind;
  kind.name = name;
  kind.family = "channel";
  kind.action = Action::kDistortMessage;
  kind.severity = severity;
  kind.summary = summary;
  kind.effect = effect;
  kind.moment = kMessageMoment;
  kind.legal = kFailBeforeTouch;
  kind.illegal = kNoHalfCommit;
  kind.proof = "The bytes written differ from the fault-free twin's.";
  kind.worlds = kEveryWorld;
  kind.counterpart = counterpart;
  kind.variants = rules::no_arguments;
  kind.applies = rules::on_message;
  kind.is_tried = rules::at_representatives;
  kind.demand = rules::must_fail;
  kind.kinds = rules::kinds_of_refused_message;
  return kind;
}

constexpr FaultKind of_replies(FaultKind kind) {
  kind.moment = kReplyMoment;
  kind.applies = rules::on_reply;
  return kind;
}

constexpr FaultKind with_kinds(FaultKind kind, std::vector<ErrorKind> (*kinds)(const Operation&)) {
  kind.kinds = kinds;
  return kind;
}

constexpr FaultKind with_arguments(FaultKind kind, std::span<const Argument> arguments,
                                   std::vector<Arguments> (*variants)()) {
  kind.arguments = arguments;
  kind.variants = variants;
  return kind;
}

constexpr FaultKind survived(FaultKind kind) {
  kind.legal = kCommits;
  kind.illegal = kNothingAtAll;
  kind.demand = rules::must_survive;
  kind.kinds = rules::no_kinds;
  return kind;
}

constexpr FaultKind duplicated_row() {
  FaultKind kind = with_kinds(
      message_row("channel.duplicated", Severity::kData, "a message arrives twice",
                  "The whole frame is written twice, back to back.",
                  "A retry below the protocol, a buffer that is flushed twice (reported in "
                  "vllm-project/vllm#57846: after an error the next call returns an old reply)."),
      rules::kinds_of_duplicate);
  kind.demand = rules::must_fail_unless_last_message;
  kind.visibility = Visibility::kSilent;
  kind.legal =
      "The publication fails at this command or at the next one. If it was the last command, it "
      "may commit, and the next command fails. Through a pipe that is narrower than the message "
      "it may take until a deadline.";
  return kind;
}

constexpr FaultKind late_row() {
  FaultKind kind = with_kinds(
      of_replies(message_row(
          "channel.late_reply", Severity::kDelay, "a reply comes after its deadline",
          "The reply is done, and written 1 s after the deadline that its writer has for it.",
          "A worker that is busy for minutes; an outer timeout that is shorter than an inner one "
          "(reported in Tencent-Hunyuan/UniRL#494: the control timeout was the shorter one).")),
      rules::kinds_of_mute_channel);
  kind.visibility = Visibility::kSilent;
  kind.illegal = "A late reply that is taken for an answer; a wait beyond the deadline; a success.";
  return kind;
}

constexpr FaultKind corrupted_field_row() {
  FaultKind kind = with_arguments(
      message_row("channel.corrupted_field", Severity::kData,
                  "a field of a request is another, well formed",
                  "The request is decoded, one field is changed, and it is encoded again.",
                  "A peer that fills a field from another source, such as a rank's number where "
                  "a device's belongs (reported in sgl-project/sglang#32685)."),
      kRequestFields, rules::request_fields);
  kind.moment =
      "channel.write of start or finish, by rank 0 or by the runtime to a worker. device_uuids: "
      "where there are several workers.";
  kind.legal = kFailStop;
  kind.applies = rules::on_request_field;
  kind.kinds = rules::remote_alone;
  return kind;
}

inline constexpr std::array kChannel = {
    FaultKind{
        .name = "channel.eof",
        .family = "channel",
        .action = Action::kCloseChannel,
        .visibility = Visibility::kVisible,
        .severity = Severity::kLoss,
        .summary = "a channel breaks at one operation",
        .effect =
            "This end is closed in place of the operation. From then on its reads give end of "
            "file, its writes fail with kEndOfFile, and the other side reads what was accepted and "
            "then end of file.",
        .moment = "channel.read and channel.write of any process, on a channel to another process.",
        .legal = kFailBeforeTouch,
        .illegal = kNoHalfCommit,
        .proof = "The trace has this end's channel.close where its twin has the operation.",
        .worlds = kEveryWorld,
        .counterpart =
            "A runtime or worker whose descriptor is closed, or which ends (reported in "
            "vllm-project/vllm#23985 and #53597: the failure of a worker shows only after a long "
            "timeout).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_channel,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_closed_channel},
    FaultKind{
        .name = "channel.timeout",
        .family = "channel",
        .action = Action::kMuteChannel,
        .visibility = Visibility::kSilent,
        .severity = Severity::kLoss,
        .summary = "a channel falls silent in one direction",
        .effect =
            "At a read: from this operation on, this end receives nothing more. At a write: what "
            "is written from this operation on never arrives. End of file still passes.",
        .moment = "channel.read and channel.write of any process, on a channel to another process.",
        .legal =
            "As channel.eof, but found only by a deadline: the runtime ends within 11 s of it.",
        .illegal = "A wait beyond the deadline; a retry on the same runtime; a success.",
        .proof =
            "At a write: the twin's bytes are missing. At a read: bytes are taken and nobody acts "
            "on them.",
        .worlds = kEveryWorld,
        .counterpart =
            "A peer that hangs, a reply that is lost (reported in Tencent-Hunyuan/UniRL#338: the "
            "trainer waits for ever when the receiver raises).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_channel,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_mute_channel},
    with_kinds(message_row("channel.truncated_frame", Severity::kLoss,
                           "a channel breaks in the middle of a message",
                           "The first half of the frame is written, then this end is closed.",
                           "A process that dies while it writes (reported in "
                           "vllm-project/vllm#23985 and #53597)."),
               rules::kinds_of_cut_message),
    message_row("channel.oversized_frame", Severity::kData,
                "a frame announces more bytes than any message has",
                "The length in the frame's head is 2 GiB - 1; the body follows as it was.",
                "A peer that counts otherwise, a stream that is read from the wrong byte on."),
    message_row("channel.stray_text", Severity::kData, "text stands where a frame should begin",
                "A line of text is written, then the frame.",
                "A library that prints into the descriptor that carries the protocol."),
    message_row("channel.malformed_body", Severity::kData, "a message is no map",
                "The first byte of the body is another type's; the frame is well formed.",
                "A peer with another encoding, memory that is overwritten while it is sent."),
    message_row("channel.wrong_version", Severity::kData,
                "a message is of another protocol version", "protocol_version is one more.",
                "A runtime and a trainer of different releases on one machine."),
    with_arguments(
        of_replies(message_row(
            "channel.wrong_reply", Severity::kData, "a reply says that it answers another request",
            "request_id is one more, or command names another command.",
            "A reply that belongs to somebody else's call (reported in vllm-project/vllm#57846: "
            "replies carry no tag).")),
        kReplyFields, rules::reply_fields),
    of_replies(message_row("channel.stale_reply", Severity::kData,
                           "the reply before is sent again in place of this one",
                           "The bytes of the last reply to this peer are written once more.",
                           "Replies that lag one behind after a failed call (reported in "
                           "vllm-project/vllm#57846).")),
    duplicated_row(),
    survived(message_row("channel.extra_field", Severity::kData,
                         "a message has a field that nobody knows",
                         "A text field is appended to the map.",
                         "A peer of a later release of the same protocol version.")),
    with_kinds(of_replies(message_row(
                   "channel.error_reply", Severity::kRefusal,
                   "a reply says that the command failed, although it was done",
                   "ok is false, with an error of the runtime's and without a result.",
                   "A worker's CUDA error after its work (reported in huggingface/trl#6913: an "
                   "error that the trainer ignored).")),
               rules::remote_alone),
    late_row(),
    survived(message_row("channel.slow", Severity::kDelay, "a message trickles in byte by byte",
                         "The first 64 bytes of the frame are written one at a time.",
                         "A pipe that is nearly full, a reader that is woken for a head alone.")),
    with_kinds(
        message_row("channel.write_error", Severity::kRefusal, "the system refuses one write",
                    "The write throws kIo; nothing is written, and the channel stays open.",
                    "ENOBUFS or EIO of a loaded host."),
        rules::kinds_of_failed_write),
    corrupted_field_row(),
};

}  // namespace tpsync::faults::rows
