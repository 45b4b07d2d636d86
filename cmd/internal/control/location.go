package control

import "encoding/json"

// A State says what stands between a file and a copy of it.
type State string

// The states of a file.
const (
	Placed    State = "placed"     // a tier holds it
	Filling   State = "filling"    // it is being copied
	AtSource  State = "source"     // only the source holds it: the first to open it has it copied
	NotPlaced State = "not_placed" // only the source holds it, and Reason says why it stays so
)

// A Location is where one file is. Paths are bytes; in JSON a path that is not
// UTF-8 has U+FFFD for the bytes that are not, and a second field, path_bytes
// or tier_path_bytes, with the whole of it in base64.
type Location struct {
	Path        string `json:"path"`                   // as it was asked for
	Type        string `json:"type"`                   // file, directory, symlink or other
	SizeBytes   int64  `json:"size_bytes"`             // its size
	Level       string `json:"level,omitempty"`        // who serves its reads: the name of a tier, or "source"; "" for what is not a file
	TierPath    string `json:"tier_path,omitempty"`    // its copy, where a tier holds one
	State       State  `json:"state,omitempty"`        // "" for what is not a file
	Reason      string `json:"reason,omitempty"`       // why it is NotPlaced
	FilledBytes int64  `json:"filled_bytes,omitempty"` // when Filling: how much of it a tier holds
}

// plainLocation is a Location without its methods.
type plainLocation Location

// wireLocation is a Location as JSON has it.
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
