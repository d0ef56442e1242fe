// The columns in which a sampling step's rows come and its results go: as in sampling/host/rows.py, sampling/host/usage.py and
// sampling/logprobs.py, with which a test compares them.
#pragma once

#include <cstdint>

namespace eagre {

enum IntColumn {
  kSlot, kPosition, kSeedLow, kSeedHigh, kTopK, kUses, kNumPromptTokens, kMinTokens, kDryAllowedLength, kDryLastN,
  kNumInts
};

enum FloatColumn {
  kTemperature, kTopP, kMinP, kTypicalP, kTopNSigma, kPresence, kFrequency, kRepetition, kDryMultiplier, kDryBase,
  kXtcProbability, kXtcThreshold, kNumFloats
};

// Bits of the column kUses.
enum Feature : uint32_t {
  kHistory = 1u << 0, kAllowedTokens = 1u << 1, kLogitBias = 1u << 2, kMinTokensFeature = 1u << 3,
  kBadWords = 1u << 4, kPenalties = 1u << 5, kDry = 1u << 6, kLogprobs = 1u << 7, kGrammar = 1u << 8
};

constexpr int kMostLogprobs = 20;
enum OutputColumn { kToken, kOwnLogprob, kRank, kBestIds, kBestLogprobs = kBestIds + kMostLogprobs,
                    kListedLogprobs = kBestLogprobs + kMostLogprobs };

// In the place of a token, beyond the vocabulary: a logit is NaN (+ 0), the request allows no token (+ 1).
constexpr int kNothingLeft = 1;

}  // namespace eagre
