package peer

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
)

// A Secret is what the nodes of a job share, and nobody else has. Two keys are derived from it.
type Secret struct {
	messages []byte // authenticates requests and answers
	gossip   []byte
	signers  sync.Pool // of *signer
}

const (
	secretPrefix = "milkweed-secret-1 " // begins a secret file
	secretBytes  = 32                   // of random data
	maxSecret    = 4096                 // bytes of a secret file
)

// NewSecret returns the content of a new secret file.
func NewSecret() string {
	random := make([]byte, secretBytes)
	rand.Read(random)
	return secretPrefix + base64.StdEncoding.EncodeToString(random) + "\n"
}

// ReadSecret reads a secret file. Only its owner, who is this user or root, may have access to it.
func ReadSecret(path string) (*Secret, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	defer f.Close()
	if err := checkPrivate(f); err != nil {
		return nil, fmt.Errorf("secret %s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	s, err := ParseSecret(string(text))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", path, err)
	}
	return s, nil
}

// checkPrivate returns an error unless f is a regular file to which only its owner has access.
func checkPrivate(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("others have access to it (mode %04o); run: chmod 600 FILE, or set defaultMode: 0400 in Kubernetes", info.Mode().Perm())
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("user %d owns it; its owner must be user %d, who runs Milkweed, or root", st.Uid, os.Geteuid())
	}
	return nil
}

// ParseSecret parses the content of a secret file.
func ParseSecret(text string) (*Secret, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	random, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(random) < secretBytes {
		return nil, errors.New("not a secret; create one with: milkweed peers keygen > FILE")
	}
	s := new(Secret)
	if s.messages, err = hkdf.Key(sha256.New, random, nil, "milkweed peers messages", sha256.Size); err != nil {
		return nil, err
	}
	s.gossip, err = hkdf.Key(sha256.New, random, nil, "milkweed peers gossip", sha256.Size)
	return s, err
}

// GossipKey returns the key of 32 bytes for gossip.
func (s *Secret) GossipKey() []byte { return s.gossip }

// A signer computes MACs.
type signer struct {
	hash hash.Hash
	text []byte
}

// mac returns the MAC of fields. kind separates the kinds of messages.
func (s *Secret) mac(kind string, fields ...string) string {
	m, _ := s.signers.Get().(*signer)
	if m == nil {
		m = &signer{hash: hmac.New(sha256.New, s.messages)}
	}
	defer s.signers.Put(m)
	m.text = appendField(m.text[:0], kind)
	for _, f := range fields {
		m.text = appendField(m.text, f)
	}
	m.hash.Reset()
	m.hash.Write(m.text)
	return base64.StdEncoding.EncodeToString(m.hash.Sum(m.text[:0]))
}

// appendField appends a field behind its length, so that fields cannot be confused.
func appendField(text []byte, f string) []byte {
	return append(binary.AppendUvarint(text, uint64(len(f))), f...)
}

// equal compares two MACs in a time that does not depend on where they differ.
func equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
