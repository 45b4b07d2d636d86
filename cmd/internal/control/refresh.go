package control

import (
	"github.com/milkweedfs/milkweed/placement"
)

// RefreshOptions configure a refresh.
type RefreshOptions struct {
	Prune  bool `json:"prune,omitempty"`   // copies of files that the source does not have are removed
	DryRun bool `json:"dry_run,omitempty"` // with Prune: these copies are counted, and stay
	Force  bool `json:"force,omitempty"`   // with Prune: see placement.PruneOptions
}

// A RefreshRequest is the body of POST /v1/refresh.
type RefreshRequest struct {
	NamesRequest
	RefreshOptions
}

// Refreshed is the state of a refresh. At its end, Names is the number of names that were
// compared with the source or found there. A name is a file or a directory.
type Refreshed struct {
	Names    int64 `json:"names"`    // names compared so far
	Added    int64 `json:"added"`    // of them, names that were not cached before
	Removed  int64 `json:"removed"`  // of them, names that are gone; a directory counts once
	Replaced int64 `json:"replaced"` // of them, names with another version of a file, or another type
	Failed   int64 `json:"failed"`   // names and directories that could not be compared

	Changes []NameChange `json:"changes,omitempty"`         // of the names added, removed and replaced; at most MaxChanges
	Omitted int64        `json:"changes_omitted,omitempty"` // number of the changes that are not in Changes
	Errors  []FileError  `json:"errors,omitempty"`          // of the first names that failed

	Pruned *placement.PruneReport `json:"pruned,omitempty"` // with RefreshOptions.Prune, when the names have been compared

	// At the end of a prune: the directories of such copies that stay, or in a dry run of all; at most MaxChanges.
	PrunedDirs []PrunedDir `json:"pruned_directories,omitempty"`
}

// A PrunedDir is a placement.PrunedDir.
type PrunedDir struct {
	Path   string `json:"path"`   // relative to the mount point
	Copies int64  `json:"copies"` // of files that the source does not have
	Bytes  int64  `json:"bytes"`  // room that they occupy
	Reason string `json:"reason,omitempty"`
}

// MaxChanges bounds Refreshed.Changes.
const MaxChanges = 100_000

// A NameChange is a name that was added, removed or replaced.
type NameChange struct {
	Path   string `json:"path"`   // relative to the mount point
	Change string `json:"change"` // added, removed or replaced
}

// A RefreshEvent is one line of the response to POST /v1/refresh. Only the last has Changes.
type RefreshEvent = Event[Refreshed]
