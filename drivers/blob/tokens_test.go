package blob

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/compute/metadata"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"
)

// A sourceFunc is an oauth2.TokenSource.
type sourceFunc func() (*oauth2.Token, error)

func (f sourceFunc) Token() (*oauth2.Token, error) { return f() }

// After refresh, token does not wait for a token request that was sent before.
func TestRefreshAbandonsTokenRequest(t *testing.T) {
	requested, release := make(chan struct{}), make(chan struct{})
	sources := []sourceFunc{
		func() (*oauth2.Token, error) {
			close(requested)
			<-release
			return &oauth2.Token{AccessToken: "old"}, nil
		},
		func() (*oauth2.Token, error) { return &oauth2.Token{AccessToken: "new"}, nil },
	}
	var finds int
	tokens := &tokenProvider{findCredentials: func() (oauth2.TokenSource, error) { finds++; return sources[finds-1], nil }}
	var first sync.WaitGroup
	defer first.Wait()
	defer close(release)
	first.Go(func() { tokens.token(context.Background()) })
	<-requested
	tokens.refresh(time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := tokens.token(ctx); err != nil || got.AccessToken != "new" {
		t.Errorf("got token %v, error %v", got, err)
	}
}

// A credentialFunc is an Azure credential that always fails.
type credentialFunc func() error

func (f credentialFunc) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, f()
}

// Errors of a token server are retried if they are transient, and are EACCES if the
// credentials are invalid.
func TestNoToken(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	failing := func(err error) sourceFunc { return func() (*oauth2.Token, error) { return nil, err } }
	azureFailing := func(status int) sourceFunc {
		return failing(&azidentity.AuthenticationFailedError{RawResponse: &http.Response{StatusCode: status, Body: http.NoBody}})
	}
	tokens := &tokenProvider{}
	// noResponse returns err, after a token request without a response.
	noResponse := func(err error) error {
		if _, err := (&http.Client{Transport: &tokens.transport}).Get(closed.URL); err == nil {
			t.Error("a closed server responds")
		}
		return err
	}
	for _, tt := range []struct {
		name      string
		source    oauth2.TokenSource
		want      error
		retryable bool
	}{
		{"Google metadata server: 503", failing(&metadata.Error{Code: 503}), syscall.EIO, true},
		{"Google metadata server: 403", failing(&metadata.Error{Code: 403}), syscall.EACCES, false},
		{"Google metadata server: 404", failing(metadata.NotDefinedError("token")), syscall.EACCES, false},
		{"Google: no response", sourceFunc(func() (*oauth2.Token, error) { return nil, noResponse(errors.New("only text")) }), syscall.ECONNREFUSED, true},
		{"no file", failing(fmt.Errorf("credentials: %w", os.ErrNotExist)), syscall.EACCES, false},
		{"time-out", failing(context.DeadlineExceeded), syscall.ETIMEDOUT, true},
		{"Azure: 429", azureFailing(429), syscall.EIO, true},
		{"Azure: 503", azureFailing(503), syscall.EIO, true},
		{"Azure: 400", azureFailing(400), syscall.EACCES, false},
		{"Azure: no request", azureSource{credentialFunc(func() error { return &azidentity.AuthenticationFailedError{} }), &tokens.transport}, syscall.EACCES, false},
		{"Azure: no response", azureSource{credentialFunc(func() error { return noResponse(&azidentity.AuthenticationFailedError{}) }), &tokens.transport}, syscall.ECONNREFUSED, true},
		{"Azure: not a machine of Azure", azureSource{credentialFunc(func() error {
			return noResponse(azidentity.NewCredentialUnavailableError("no credentials"))
		}), &tokens.transport}, syscall.EACCES, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tokens.findCredentials, tokens.credentials = nil, tt.source
			_, err := (&http.Client{Transport: &signer{tokens, nil}}).Get("http://store/")
			for _, v := range []vendor{&googleCloud{}, &azure{}} {
				if e := classify(v, &trace{}, err); !errors.Is(e, tt.want) || e.retryable != tt.retryable || e.refresh == tt.retryable {
					t.Errorf("%T: got %+v, want %v, retryable %v", v, e, tt.want, tt.retryable)
				}
			}
		})
	}
}
