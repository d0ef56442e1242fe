// The names by which the sampler reads a step and writes its result. Generated from the declarations in
// sampling/host/features.py by: python -m engine.backends.native.sample_header
#pragma once

#include <cstdint>

namespace eagre {

// Columns of the rows' integers and of their floats.
enum IntColumn {
  kSlot, kPosition, kSeedLow, kSeedHigh, kUses, kNumPromptTokens, kMinTokens, kDryAllowedLength, kDryPenaltyLastN,
  kTopK, kNumInts,
};

enum FloatColumn {
  kTemperature, kRepetitionPenalty, kFrequencyPenalty, kPresencePenalty, kDryMultiplier, kDryBase, kTopNSigma, kMinP,
  kTypicalP, kTopP, kXtcProbability, kXtcThreshold, kNumFloats,
};

// Bits of the column kUses.
enum Uses : uint32_t {
  kUsesHistory = 1, kUsesAllowedTokens = 2, kUsesLogitBias = 4, kUsesMinTokens = 8, kUsesBadWords = 16,
  kUsesGrammar = 32, kUsesPenalties = 64, kUsesDry = 128, kUsesLogprobs = 256, kUsesDrawnLogprobs = 512,
};

// The arrays of the features' states, in the order in which a step passes them.
enum StateArray {
  kAllowedTokensState, kBadWordsState, kDryState, kHistoryState, kLogitBiasTokenIdsState, kLogitBiasValuesState,
  kLogprobsState, kMinTokensState, kPenaltiesCountsState, kPenaltiesPromptState, kNumStateArrays,
};

// Those that a step changes, in the order in which it returns them.
constexpr StateArray kUpdatedStates[] = {kHistoryState, kPenaltiesCountsState, kPenaltiesPromptState};

// Columns of the output of a row that uses logprobs.
enum OutputColumn {
  kToken = 0, kOwnLogprob = 1, kRank = 2, kMaskedShare = 3, kBestIds = 4, kBestLogprobs = 24, kListedLogprobs = 44,
};

constexpr int kMostLogprobs = 20;

// In the place of a token, beyond the vocabulary: a logit is NaN (+ 0), the request allows no token (+ this).
constexpr int kNothingLeft = 1;

}  // namespace eagre
