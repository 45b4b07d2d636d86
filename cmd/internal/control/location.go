package control

// A State is the state of the copy of a file.
type State string

// The states of a file.
const (
	Placed    State = "placed"     // a tier has a copy
	Filling   State = "filling"    // a copy is in flight
	AtSource  State = "source"     // only the source has the file; its next open starts a copy
	NotPlaced State = "not_placed" // only the source has the file, and it is not copied; see Reason
)

// A Location describes a file and its copy.
type Location struct {
	Path        string `json:"path"`                   // as in the request
	Type        string `json:"type"`                   // file, directory, symlink or other
	SizeBytes   int64  `json:"size_bytes"`             // size of the file
	Level       string `json:"level,omitempty"`        // level that serves its reads: the name of a tier, or "source"; "" if it is not a file
	TierPath    string `json:"tier_path,omitempty"`    // path of the copy, if Placed
	State       State  `json:"state,omitempty"`        // "" if it is not a file
	Reason      string `json:"reason,omitempty"`       // if NotPlaced: why; if Filling: why not all of the file is copied
	FilledBytes int64  `json:"filled_bytes,omitempty"` // if Filling: bytes copied so far
}
