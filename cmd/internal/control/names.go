package control

import "github.com/milkweedfs/milkweed/cmd/internal/paths"

// The types of which a string may be a name that is not UTF-8. Their JSON has such a string twice, as
// paths.Marshal describes.

// MarshalJSON implements json.Marshaler.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	return paths.Marshal(plain(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Status) UnmarshalJSON(text []byte) error {
	type plain Status
	return paths.Unmarshal(text, (*plain)(s))
}

// MarshalJSON implements json.Marshaler.
func (t Tier) MarshalJSON() ([]byte, error) {
	type plain Tier
	return paths.Marshal(plain(t))
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Tier) UnmarshalJSON(text []byte) error {
	type plain Tier
	return paths.Unmarshal(text, (*plain)(t))
}

// MarshalJSON implements json.Marshaler.
func (s Source) MarshalJSON() ([]byte, error) {
	type plain Source
	return paths.Marshal(plain(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Source) UnmarshalJSON(text []byte) error {
	type plain Source
	return paths.Unmarshal(text, (*plain)(s))
}

// MarshalJSON implements json.Marshaler.
func (l Location) MarshalJSON() ([]byte, error) {
	type plain Location
	return paths.Marshal(plain(l))
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Location) UnmarshalJSON(text []byte) error {
	type plain Location
	return paths.Unmarshal(text, (*plain)(l))
}

// MarshalJSON implements json.Marshaler.
func (l TraceLine) MarshalJSON() ([]byte, error) {
	type plain TraceLine
	return paths.Marshal(plain(l))
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *TraceLine) UnmarshalJSON(text []byte) error {
	type plain TraceLine
	return paths.Unmarshal(text, (*plain)(l))
}

// MarshalJSON implements json.Marshaler.
func (n NameChange) MarshalJSON() ([]byte, error) {
	type plain NameChange
	return paths.Marshal(plain(n))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *NameChange) UnmarshalJSON(text []byte) error {
	type plain NameChange
	return paths.Unmarshal(text, (*plain)(n))
}

// MarshalJSON implements json.Marshaler.
func (d PrunedDir) MarshalJSON() ([]byte, error) {
	type plain PrunedDir
	return paths.Marshal(plain(d))
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *PrunedDir) UnmarshalJSON(text []byte) error {
	type plain PrunedDir
	return paths.Unmarshal(text, (*plain)(d))
}

// MarshalJSON implements json.Marshaler.
func (e FileError) MarshalJSON() ([]byte, error) {
	type plain FileError
	return paths.Marshal(plain(e))
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *FileError) UnmarshalJSON(text []byte) error {
	type plain FileError
	return paths.Unmarshal(text, (*plain)(e))
}

// MarshalJSON implements json.Marshaler.
func (g Generations) MarshalJSON() ([]byte, error) {
	type plain Generations
	return paths.Marshal(plain(g))
}

// UnmarshalJSON implements json.Unmarshaler.
func (g *Generations) UnmarshalJSON(text []byte) error {
	type plain Generations
	return paths.Unmarshal(text, (*plain)(g))
}

// MarshalJSON implements json.Marshaler.
func (g Generation) MarshalJSON() ([]byte, error) {
	type plain Generation
	return paths.Marshal(plain(g))
}

// UnmarshalJSON implements json.Unmarshaler.
func (g *Generation) UnmarshalJSON(text []byte) error {
	type plain Generation
	return paths.Unmarshal(text, (*plain)(g))
}

// MarshalJSON implements json.Marshaler.
func (r SwitchRequest) MarshalJSON() ([]byte, error) {
	type plain SwitchRequest
	return paths.Marshal(plain(r))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *SwitchRequest) UnmarshalJSON(text []byte) error {
	type plain SwitchRequest
	return paths.Unmarshal(text, (*plain)(r))
}

// MarshalJSON implements json.Marshaler.
func (s Switched) MarshalJSON() ([]byte, error) {
	type plain Switched
	return paths.Marshal(plain(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Switched) UnmarshalJSON(text []byte) error {
	type plain Switched
	return paths.Unmarshal(text, (*plain)(s))
}

// MarshalJSON implements json.Marshaler.
func (r PrepareRequest) MarshalJSON() ([]byte, error) {
	type plain PrepareRequest
	return paths.Marshal(plain(r))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *PrepareRequest) UnmarshalJSON(text []byte) error {
	type plain PrepareRequest
	return paths.Unmarshal(text, (*plain)(r))
}

// MarshalJSON implements json.Marshaler.
func (p Prepared) MarshalJSON() ([]byte, error) {
	type plain Prepared
	return paths.Marshal(plain(p))
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Prepared) UnmarshalJSON(text []byte) error {
	type plain Prepared
	return paths.Unmarshal(text, (*plain)(p))
}

// MarshalJSON implements json.Marshaler.
func (r DropRequest) MarshalJSON() ([]byte, error) {
	type plain DropRequest
	return paths.Marshal(plain(r))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *DropRequest) UnmarshalJSON(text []byte) error {
	type plain DropRequest
	return paths.Unmarshal(text, (*plain)(r))
}
