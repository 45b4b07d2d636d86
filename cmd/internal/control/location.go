package control

import "encoding/json"

// A State is the state of the copy of a file.
type State string

// The states of a file.
const (
	Placed    State = "placed"     // a tier has a copy
	Filling   State = "filling"    // a copy is in flight
	AtSource  State = "source"     // only the source has the file; its next open starts a copy
	NotPlaced State = "not_placed" // only the source has the file, and it is not copied; see Reason
)

// A Location describes a file and its copy. A path that is not UTF-8 has two fields in JSON: a
// string with U+FFFD in place of invalid bytes, and all bytes in base64, in path_bytes or
// tier_path_bytes.
type Location struct {
	Path        string `json:"path"`                   // as in the request
	Type        string `json:"type"`                   // file, directory, symlink or other
	SizeBytes   int64  `json:"size_bytes"`             // size of the file
	Level       string `json:"level,omitempty"`        // level that serves its reads: the name of a tier, or "source"; "" if it is not a file
	TierPath    string `json:"tier_path,omitempty"`    // path of the copy, if Placed
	State       State  `json:"state,omitempty"`        // "" if it is not a file
	Reason      string `json:"reason,omitempty"`       // if NotPlaced: why
	FilledBytes int64  `json:"filled_bytes,omitempty"` // if Filling: bytes copied so far
}

// plainLocation is a Location without its methods.
type plainLocation Location

// wireLocation has the fields of a Location in JSON.
type wireLocation struct {
	plainLocation
	PathBytes     []byte `json:"path_bytes,omitempty"`
	TierPathBytes []byte `json:"tier_path_bytes,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (l Location) MarshalJSON() ([]byte, error) {
	w := wireLocation{plainLocation: plainLocation(l)}
	w.Path, w.PathBytes = printable(l.Path)
	w.TierPath, w.TierPathBytes = printable(l.TierPath)
	return json.Marshal(w)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Location) UnmarshalJSON(p []byte) error {
	var w wireLocation
	if err := json.Unmarshal(p, &w); err != nil {
		return err
	}
	*l = Location(w.plainLocation)
	l.Path = exact(w.Path, w.PathBytes)
	l.TierPath = exact(w.TierPath, w.TierPathBytes)
	return nil
}
