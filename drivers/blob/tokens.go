package blob

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// A signer adds a token to each request. It replaces the signers of the libraries,
// which wait for a token without a time-out or for as long as another request
// does, and which sign requests that follow a redirect to another host.
type signer struct {
	tokens *tokenProvider
	inner  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := s.tokens.token(r.Context())
	if err != nil {
		return nil, &tokenError{err, time.Duration(s.tokens.transport.skew.Load())}
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return s.inner.RoundTrip(r)
}

// A tokenError is the reason why a request could not be signed. The request was not
// sent. skew is by how much the clock of the server that issues tokens was ahead of that
// of this machine when it last responded.
type tokenError struct {
	err  error
	skew time.Duration
}

func (e *tokenError) Error() string { return "no token: " + e.err.Error() }

func (e *tokenError) Unwrap() error { return e.err }

// A tokenTransport sends requests to the server that issues tokens. It records the
// error of the last request if there was no response. The libraries return that
// error only as text, which looks the same as the text for invalid credentials.
type tokenTransport struct {
	noResponse atomic.Pointer[url.Error] // nil: there was a response
	skew       atomic.Int64              // of the last response, in ns
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.noResponse.Store(&url.Error{Op: r.Method, URL: r.URL.Redacted(), Err: err})
		return nil, err
	}
	t.noResponse.Store(nil)
	t.skew.Store(int64(aheadOf(resp.Header)))
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxErrorBody, end: io.EOF}
	return resp, nil
}

// A tokenProvider returns the tokens that requests are signed with. Its methods may
// be called concurrently.
type tokenProvider struct {
	findCredentials func() (oauth2.TokenSource, error)
	transport       tokenTransport // used by the credentials
	flight          singleflight.Group

	mu          sync.Mutex // guards the following
	credentials oauth2.TokenSource
	foundAt     time.Time // when credentials were found
}

// source returns the credentials, which issue tokens. It finds them on the first
// call and on the first call after refresh.
func (p *tokenProvider) source() (oauth2.TokenSource, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.credentials == nil {
		credentials, err := p.findCredentials()
		if err != nil {
			return nil, err
		}
		p.credentials, p.foundAt = credentials, time.Now()
	}
	return p.credentials, nil
}

// token returns a valid token. Concurrent calls share one request for it (single
// flight). Each call returns when its own context is done.
func (p *tokenProvider) token(ctx context.Context) (*oauth2.Token, error) {
	result := p.flight.DoChan("", func() (any, error) { return p.request() })
	select {
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*oauth2.Token), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// request gets a token from the credentials.
func (p *tokenProvider) request() (*oauth2.Token, error) {
	source, err := p.source()
	if err != nil {
		return nil, err
	}
	p.transport.noResponse.Store(nil)
	token, err := source.Token()
	if lost := p.transport.noResponse.Load(); err != nil && lost != nil {
		return nil, lost
	}
	return token, err
}

// refresh discards the credentials, unless they were found after began. Later calls
// of token do not wait for a request that was started before. A nil *tokenProvider
// has none: requests are signed otherwise.
func (p *tokenProvider) refresh(began time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.foundAt.Before(began) {
		p.credentials = nil
		p.flight.Forget("")
	}
}
