// The sampler, and bursts of steps that it ends, as targets of XLA's foreign function interface. The plain functions are
// the host's side of a burst.
//
// Shapes are checked here, so that a mistake in a caller is an error and not a read or write astray.
#include <algorithm>
#include <chrono>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "ffi/handler.h"
#include "runtime/bursts.h"
#include "runtime/pool.h"
#include "sampling/argmax.h"
#include "sampling/sample_columns.h"
#include "sampling/sampler.h"

namespace eagre {
namespace {

template <class Buffer>
bool has_shape(const Buffer& buffer, std::initializer_list<int64_t> wanted) {
  const auto shape = buffer.dimensions();
  return shape.size() == wanted.size() && std::equal(shape.begin(), shape.end(), wanted.begin());
}

// The second dimension of a matrix of so many rows, or -1.
template <class Buffer>
int64_t width_of(const Buffer& buffer, int64_t num_rows) {
  const auto shape = buffer.dimensions();
  return shape.size() == 2 && shape[0] == num_rows ? shape[1] : -1;
}

ffi::Error read_step(const F32& logits, const S32& ints, const F32& floats, const F32& uniforms, int64_t num_slots,
                     SampleStep& step) {
  const auto shape = logits.dimensions();
  if (shape.size() != 2 || shape[1] < 1) return invalid("logits have another shape");
  if (!has_shape(ints, {shape[0], kNumInts}) || !has_shape(floats, {shape[0], kNumFloats}) ||
      !has_shape(uniforms, {shape[0], 2})) {
    return invalid("the sampler's rows have another shape");
  }
  step = {logits.typed_data(), ints.typed_data(), floats.typed_data(), uniforms.typed_data(), nullptr,
          shape[0], shape[1], num_slots, nullptr};
  return ffi::Error::Success();
}

ffi::Error sample_random(F32 logits, S32 ints, F32 floats, F32 uniforms, S32Result tokens, int64_t num_slots) {
  SampleStep step;
  if (ffi::Error error = read_step(logits, ints, floats, uniforms, num_slots, step); error.failure()) return error;
  if (!has_shape(*tokens, {step.num_rows})) return invalid("logits and tokens differ in rows");
  Pool& pool = Pool::shared();
  const PoolTurn turn(pool, current_run());
  sample(pool, step, 1, tokens->typed_data());
  return ffi::Error::Success();
}

// An array of the features' states, by the name that sample_columns.h gives it.
template <class Buffer>
Buffer array(const ffi::RemainingArgs& arrays, StateArray name) {
  const ffi::AnyBuffer found = arrays[name];
  if (found.element_type() != Buffer::kDataType) throw std::invalid_argument("a feature's state is of another type");
  return Buffer(found);
}

// Whether the arrays that the step changes are those that it returns.
bool are_in_place(const ffi::RemainingArgs& arrays, const ffi::RemainingRets& updated) {
  for (size_t i = 0; i < updated.size(); ++i) {
    if (arrays[kUpdatedStates[i]].untyped_data() != updated[i].untyped_data()) return false;
  }
  return true;
}

ffi::Error sample_full(F32 logits, S32 ints, F32 floats, F32 uniforms, U32 masks, ffi::RemainingArgs arrays,
                       S32Result out, ffi::RemainingRets updated) {
  if (arrays.size() != kNumStateArrays || updated.size() != std::size(kUpdatedStates)) {
    return invalid("there are other states than the features keep");
  }
  if (!are_in_place(arrays, updated)) return invalid("what a step changes must be updated in place");
  const auto allowed = array<U32>(arrays, kAllowedTokensState), prompt = array<U32>(arrays, kPenaltiesPromptState),
             breakers = array<U32>(arrays, kDryState);
  const auto history = array<S32>(arrays, kHistoryState), bias_ids = array<S32>(arrays, kLogitBiasTokenIdsState),
             end_ids = array<S32>(arrays, kMinTokensState), bad_words = array<S32>(arrays, kBadWordsState),
             counts = array<S32>(arrays, kPenaltiesCountsState), listed = array<S32>(arrays, kLogprobsState);
  const auto bias_values = array<F32>(arrays, kLogitBiasValuesState);
  const auto counts_shape = counts.dimensions(), words_shape = bad_words.dimensions();
  if (counts_shape.size() != 2) return invalid("the counts have another shape");
  const int64_t num_slots = counts_shape[0];
  SampleStep step;
  if (ffi::Error error = read_step(logits, ints, floats, uniforms, num_slots, step); error.failure()) return error;
  const int64_t num_words = (step.vocab_size + 31) / 32;
  if (counts_shape[1] != step.vocab_size || !has_shape(masks, {step.num_rows, num_words}) ||
      !has_shape(allowed, {num_slots, num_words}) || !has_shape(prompt, {num_slots, num_words}) ||
      !has_shape(breakers, {num_slots, num_words})) {
    return invalid("counts and sets of tokens do not fit the vocabulary and the slots");
  }
  if (words_shape.size() != 3 || words_shape[0] != num_slots || words_shape[2] < 1) {
    return invalid("the bad words have another shape");
  }
  const SampleStates states{
      history.typed_data(), allowed.typed_data(), bias_ids.typed_data(), bias_values.typed_data(),
      end_ids.typed_data(), bad_words.typed_data(), counts.typed_data(), prompt.typed_data(), breakers.typed_data(),
      listed.typed_data(), width_of(history, num_slots), width_of(bias_ids, num_slots), width_of(end_ids, num_slots),
      words_shape[1], words_shape[2], width_of(listed, num_slots)};
  if (std::min({states.history_length, states.num_biases, states.num_end_ids, states.num_listed}) < 0 ||
      !has_shape(bias_values, {num_slots, states.num_biases})) {
    return invalid("a feature's state does not fit the slots");
  }
  const int64_t num_columns = kListedLogprobs + states.num_listed;
  if (!has_shape(*out, {step.num_rows, num_columns})) return invalid("the output has another shape");
  step.masks = masks.typed_data();
  step.states = &states;
  Pool& pool = Pool::shared();
  const PoolTurn turn(pool, current_run());
  sample(pool, step, num_columns, out->typed_data());
  return ffi::Error::Success();
}

ffi::Error logprobs(F32 logits, S32 tokens, S32 listed, S32Result out) {
  const auto shape = logits.dimensions();
  if (shape.size() != 2 || shape[1] < 1) return invalid("logits have another shape");
  const int64_t num_listed = width_of(listed, shape[0]);
  if (!has_shape(tokens, {shape[0]}) || num_listed < 0) {
    return invalid("logits, tokens and listed tokens differ in rows");
  }
  if (!has_shape(*out, {shape[0], kListedLogprobs + num_listed})) return invalid("the output has another shape");
  Pool& pool = Pool::shared();
  const PoolTurn turn(pool, current_run());
  logprobs_of(pool, logits.typed_data(), shape[0], shape[1], tokens.typed_data(), listed.typed_data(), num_listed,
              out->typed_data());
  return ffi::Error::Success();
}

// The best token of each row whose slot is below num_slots.
ffi::Error argmax_rows(F32 logits, S32 slots, S32Result tokens, int64_t num_slots) {
  const auto shape = logits.dimensions();
  if (shape.size() != 2 || !has_shape(slots, {shape[0]}) || !has_shape(*tokens, {shape[0]})) {
    return invalid("logits, slots and tokens differ in rows");
  }
  Pool& pool = Pool::shared();
  const PoolTurn turn(pool, current_run());
  argmax(pool, logits.typed_data(), shape[0], shape[1], slots.typed_data(), num_slots, tokens->typed_data());
  return ffi::Error::Success();
}

// Tells the host of the step's tokens; 1 where the burst goes on. A burst that the host has closed does not.
ffi::Error tell_step(S32 tokens, S32 number, S32Result goes_on) {
  if (number.element_count() != 1 || goes_on->element_count() != 1) return invalid("a burst has another shape");
  const std::shared_ptr<Burst> burst = Bursts::shared().find(number.typed_data()[0]);
  int32_t& result = goes_on->typed_data()[0] = 0;
  if (burst == nullptr) return ffi::Error::Success();
  if (static_cast<int64_t>(tokens.element_count()) != burst->num_rows()) {
    return invalid("a burst has another number of rows");
  }
  result = burst->tell(tokens.typed_data()) ? 1 : 0;
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_argmax, argmax_rows, "num_slots")

EAGRE_TARGET(eagre_sample_random, sample_random, "num_slots")

EAGRE_TARGET(eagre_sample_full, sample_full)

EAGRE_TARGET(eagre_logprobs, logprobs)

EAGRE_TARGET(eagre_tell_step, tell_step)

// Returns the number of a new burst, or -1 where there is no memory.
extern "C" int32_t eagre_open_burst(int64_t num_rows, int32_t num_steps) {
  try {
    return Bursts::shared().open(num_rows, num_steps);
  } catch (const std::exception&) {
    return -1;
  }
}

// Waits until a step of an open burst is told and copies its tokens; 0 where that takes longer than so many microseconds.
extern "C" int32_t eagre_wait_for_step(int32_t burst, int32_t step, int64_t most, int32_t* tokens) {
  return Bursts::shared().find(burst)->wait(step, std::chrono::microseconds(most), tokens) ? 1 : 0;
}

extern "C" int32_t eagre_num_told_steps(int32_t burst) { return Bursts::shared().find(burst)->num_told(); }

extern "C" int32_t eagre_cut_burst(int32_t burst) { return Bursts::shared().find(burst)->cut(); }

extern "C" void eagre_close_burst(int32_t burst) { Bursts::shared().close(burst); }

}  // namespace eagre
